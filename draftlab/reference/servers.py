"""How each kind of server is recognised and asked; pure, so that no test needs a network.

In:   JSON that a server sent.  Out: what it is, and what to send it.

Four dialects. Three take the prompt as token ids and give the completion's token ids back:

    sglang     POST /generate          input_ids         -> output_ids         (SGLang 0.5)
    vllm       POST /v1/completions    prompt: [ids]     -> choices[0].token_ids, when asked with
                                       return_token_ids                        (vLLM, LMDeploy)
    llama.cpp  POST /completion        prompt: [ids]     -> tokens, when asked with return_tokens
    text       POST /v1/chat/completions, /v1/completions: text both ways      (any other)

Whatever bends the decoding is switched off by name: servers take defaults such as a repetition
penalty from the model's generation_config.json or from their own command line. The `text` dialect
cannot do that, since strict servers refuse what OpenAI's API does not define.

Each sample of a prompt is a request of its own with its own seed, so a stopped run asks for the
missing ones alone. What a seed is worth is the server's affair: SGLang heeds it under
--enable-deterministic-inference only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from draftlab.base.errors import CompletionsError
from draftlab.base.quantities import listing, one_line
from draftlab.reference.completions import Dialect
from draftlab.reference.prompts import Prompt
from draftlab.target.decoding import GREEDY, Decoding

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What answers at an address."""

    name: str
    version: str
    model_id: str
    dialect: Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """JSON objects that a server sent when looked at; None where it had none."""

    models: Mapping[str, Any] | None = None
    """GET /v1/models"""
    model_info: Mapping[str, Any] | None = None
    """GET /model_info or /get_model_info"""
    server_info: Mapping[str, Any] | None = None
    """GET /server_info or /get_server_info"""
    props: Mapping[str, Any] | None = None
    """GET /props"""
    version: Mapping[str, Any] | None = None
    """GET /version"""


@dataclass(frozen=True, slots=True)
class Asking:
    """What is the same in all requests of a run."""

    dialect: Dialect
    model_id: str
    max_new_tokens: int
    ignore_eos: bool
    switch: Mapping[str, bool]
    """What the thinking mode passes to a chat template that the server renders."""
    decoding: Decoding = GREEDY
    num_alternatives: int = 0
    """So many of the most probable tokens are to be given at each place, with log-probabilities."""


@dataclass(frozen=True, slots=True)
class Request:
    """One POST."""

    path: str
    body: dict[str, Any]


def identify(probes: Probes, wanted_model: str) -> ServerFacts:
    """Tell what a server is from what it answers.

    Servers other than SGLang and llama.cpp are taken for `text` until one has given token ids.

    Raises:
        CompletionsError: it is none that is known, or which of its models is meant is open.
    """
    info, props = probes.model_info or {}, probes.props or {}
    if isinstance(info.get("model_path"), str):
        version = _word(probes.server_info, "version")
        name = _word(info, "served_model_name", "model_path")
        found = ServerFacts("SGLang", version, name, "sglang")
    elif "default_generation_settings" in props:
        name = _word(props, "model_alias", "model_path").rpartition("/")[2]
        found = ServerFacts("llama.cpp", _word(props, "build_info"), name, "llama.cpp")
    else:
        return _from_model_list(probes, wanted_model)
    if wanted_model not in ("", found.model_id):
        raise _no_such_model(wanted_model, [found.model_id])
    return found


def _from_model_list(probes: Probes, wanted_model: str) -> ServerFacts:
    entries = (probes.models or {}).get("data")
    listed = [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
    if not listed:
        raise CompletionsError(
            "this server is none that draftlab knows: it has no /model_info (SGLang), no /props "
            "(llama.cpp) and no list of models under /v1/models (vLLM and others).",
            mend="Check --server: scheme, host and port of an inference server.",
        )
    ids = [one_line(entry["id"]) for entry in listed]
    if wanted_model and wanted_model not in ids:
        raise _no_such_model(wanted_model, ids)
    if not wanted_model and len(ids) > 1:
        raise CompletionsError(
            f"the server has {len(ids)} models: {listing(ids)}; which to ask is never guessed.",
            mend=f"Pass --model, e.g. --model {ids[0]}.",
        )
    model = wanted_model or ids[0]
    name = "vLLM" if listed[ids.index(model)].get("owned_by") == "vllm" else "OpenAI-compatible"
    return ServerFacts(name, _word(probes.version, "version"), model, "text")


def _no_such_model(wanted: str, there: list[str]) -> CompletionsError:
    return CompletionsError(
        f"the server has no model {wanted!r}; it has {listing(there)}.", mend="Check --model."
    )


def request(asking: Asking, prompt: Prompt, ids: tuple[int, ...], seed: int = 0) -> Request:
    """What to send for one completion of one prompt, whose token ids are `ids`.

    Raises:
        CompletionsError: this server cannot be asked this.
    """
    match asking.dialect:
        case "sglang":
            return Request("/generate", _sglang_body(asking, ids, seed))
        case "vllm":
            return Request("/v1/completions", _vllm_body(asking, ids, seed))
        case "llama.cpp":
            return Request("/completion", _llama_body(asking, ids, seed))
        case "text":
            return _text_request(asking, prompt, seed)
        case new_dialect:
            assert_never(new_dialect)


_NO_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0}


def _sglang_body(asking: Asking, ids: tuple[int, ...], seed: int) -> dict[str, Any]:
    decoding = asking.decoding
    if decoding.top_k and decoding.top_p < 1:
        raise CompletionsError(
            "SGLang holds top-p against what top-k has not filtered: with both it draws from more "
            "tokens than the target's distribution has.",
            mend="Pass --top-k or --top-p alone, or leave --server out.",
        )
    sampling: dict[str, Any] = {
        "max_new_tokens": asking.max_new_tokens,
        "temperature": decoding.temperature,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        **_NO_PENALTIES,
        "ignore_eos": asking.ignore_eos,
    }
    if not decoding.is_greedy:
        sampling |= {
            "top_k": decoding.top_k or -1,
            "top_p": decoding.top_p,
            "sampling_seed": seed,
        }
    body = {
        "input_ids": list(ids),
        "sampling_params": sampling,
        "return_prompt_token_ids": True,
        "stream": False,
    }
    if asking.num_alternatives:
        body |= {"return_logprob": True, "top_logprobs_num": asking.num_alternatives}
    return body


def _vllm_body(asking: Asking, ids: tuple[int, ...], seed: int) -> dict[str, Any]:
    decoding = asking.decoding
    body: dict[str, Any] = {
        "model": asking.model_id,
        "prompt": list(ids),
        "max_tokens": asking.max_new_tokens,
        "temperature": decoding.temperature,
        "repetition_penalty": 1.0,
        **_NO_PENALTIES,
        "ignore_eos": asking.ignore_eos,
        "return_token_ids": True,
        "stream": False,
    }
    if not decoding.is_greedy:
        body |= {"top_k": decoding.top_k, "top_p": decoding.top_p, "min_p": 0.0, "seed": seed}
    if asking.num_alternatives:
        body |= {"logprobs": asking.num_alternatives, "return_tokens_as_token_ids": True}
    return body


def _llama_body(asking: Asking, ids: tuple[int, ...], seed: int) -> dict[str, Any]:
    if asking.ignore_eos:
        raise CompletionsError(
            "llama.cpp does not go on past end-of-text tokens, it forbids them: its text is then "
            "not what the target would say.",
            mend="Leave --ignore-eos out.",
        )
    decoding = asking.decoding
    body: dict[str, Any] = {
        "prompt": list(ids),
        "n_predict": asking.max_new_tokens,
        "temperature": decoding.temperature,
        "top_k": 1,
        "repeat_penalty": 1.0,
        **_NO_PENALTIES,
        "dry_multiplier": 0.0,
        "ignore_eos": False,
        "cache_prompt": False,  # its documentation: reuse may change the logits
        "return_tokens": True,
        "stream": False,
    }
    if not decoding.is_greedy:
        body |= {
            # In this order, where its own has the temperature last; what is not named is not used.
            "samplers": ["temperature", "top_k", "top_p"],
            "top_k": decoding.top_k,
            "top_p": decoding.top_p,
            "seed": seed,
            "dynatemp_range": 0.0,
            "mirostat": 0,  # would take the place of the samplers
            "min_p": 0.0,
            "typical_p": 1.0,
            "xtc_probability": 0.0,
            "min_keep": 0,
        }
    if asking.num_alternatives:
        body |= {"n_probs": asking.num_alternatives, "post_sampling_probs": False}
    return body


def _text_request(asking: Asking, prompt: Prompt, seed: int) -> Request:
    decoding = asking.decoding
    if asking.ignore_eos:
        raise CompletionsError(
            "this server takes text only and cannot ignore end-of-text tokens.",
            mend="Leave --ignore-eos out.",
        )
    if decoding.top_k:
        raise CompletionsError(
            "this server takes text only, and OpenAI's API has no top_k.",
            mend="Leave --top-k out, or use --top-p.",
        )
    body: dict[str, Any] = {
        "model": asking.model_id,
        "max_tokens": asking.max_new_tokens,
        "temperature": decoding.temperature,
    }
    if not decoding.is_greedy:
        body |= {"top_p": decoding.top_p, "seed": seed}
    if prompt.messages is not None:
        body["messages"] = [message.model_dump() for message in prompt.messages]
        if asking.switch:
            body["chat_template_kwargs"] = dict(asking.switch)
        return Request("/v1/chat/completions", body)
    if prompt.prompt is not None:
        return Request("/v1/completions", {**body, "prompt": prompt.prompt})
    raise CompletionsError(
        f"this server takes text only and prompt {prompt.key!r} is given as token ids.",
        mend='Give {"prompt": ...} or {"messages": [...]} lines.',
    )


def _word(body: Mapping[str, Any] | None, *names: str) -> str:
    """The first of these fields that is a text, made harmless."""
    for name in names:
        value = (body or {}).get(name)
        if isinstance(value, str) and value.strip():
            return one_line(value)
    return UNKNOWN
