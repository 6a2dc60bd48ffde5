"""`draftlab reference`: by a local target, or by a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from draftlab.base.errors import CompletionsError
from draftlab.base.progress import bar
from draftlab.cli.options import DeviceOption, DtypeOption, Threads, key_from, say
from draftlab.cli.reference_text import require_no_difference, summary

if TYPE_CHECKING:
    from draftlab.reference.completions import ReferenceRecord
    from draftlab.reference.generate import DecodeSettings
    from draftlab.reference.servers import ServerFacts
    from draftlab.reference.sources import PromptList
    from draftlab.target.decoding import Decoding

EXAMPLE = (
    "Example: draftlab reference --prompts builtin:code,maths --target models/Qwen3-4B "
    "--max-new-tokens 128 --out work/ref\n\n"
    "Example: draftlab reference --prompts prompts.jsonl --target models/Qwen3-4B "
    "--server http://localhost:30000 --max-new-tokens 4096 --out work/ref\n\n"
    "Example: draftlab reference --from conversations.jsonl --target models/Qwen3-4B "
    "--out work/ref"
)

_Switch = Annotated[bool, Parameter(negative="")]


@Parameter(name="*", group=Group("Sampling"))
@dataclass(frozen=True)
class DecodingFlags:
    """How the next token is chosen; all at their defaults is greedy."""

    temperature: float = 0.0
    """0 is greedy; otherwise tokens are drawn, here each with its log-probability."""
    top_k: int = 0
    """Draw from the k most probable tokens; 0 takes all."""
    top_p: float = 1.0
    """Then from the fewest of these whose share reaches p."""
    seed: int = 0
    """Of every draw; each completion's own follows from it and from what is asked."""
    samples: int = 1
    """Completions per prompt."""

    def decoding(self) -> Decoding:
        """The flags, checked."""
        from draftlab.target.decoding import Decoding

        return Decoding(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            num_samples=self.samples,
        )


@Parameter(name="*", group=Group("Decoding here"))
@dataclass(frozen=True)
class LocalFlags:
    """What only a local target needs."""

    batch_size: int = 16
    """Completions decoded together."""
    device: DeviceOption = "auto"
    dtype: DtypeOption = "auto"
    threads: Threads = None


@Parameter(name="*", group=Group("Asking a server"))
@dataclass(frozen=True)
class ServerFlags:
    """What only a server needs."""

    model: str = ""
    """Which of the server's models, where it has several."""
    concurrency: int = 8
    """Requests in flight at a time."""
    time_limit: float = 600.0
    """Seconds that one answer may take."""
    retries: int = 4
    """How often a request is repeated at most, after growing waits."""
    keep_cut_off: _Switch = False
    """Keep completions cut off at --max-new-tokens; by default they are counted and left out."""
    verify: int = 0
    """Ask this many prompts again, alone and under load; any difference ends in exit code 3."""
    api_key_env: str = ""
    """Name of the environment variable that holds the server's key."""


def reference(
    *,
    target: Path,
    out: Path,
    prompts: str = "",
    max_new_tokens: int | None = None,
    conversations: Annotated[Path | None, Parameter(name="--from")] = None,
    server: str = "",
    limit: int | None = None,
    ignore_eos: bool = False,
    thinking: Literal["on", "off", "template"] = "template",
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    choice: DecodingFlags = DecodingFlags(),
    local: LocalFlags = LocalFlags(),
    asking: ServerFlags = ServerFlags(),
) -> None:
    """Let the target complete prompts, or take given answers; keep the token ids.

    Without --server the target is loaded and decodes here. With it, a server is asked (SGLang,
    vLLM, llama.cpp or any OpenAI-compatible one), and of the target's folder only the config and
    the tokenizer are read, to render and encode the prompts. With --from nothing is decoded: the
    answers of conversations are taken as they are, the target's own or not.

    Parameters
    ----------
    prompts
        JSONL: {"prompt": ...}, {"messages": [...]} or {"input_ids": [...]}, with optional id,
        domain. Or a set by its name: builtin, builtin:code,maths (also chat, writing, agent,
        multilingual), or humaneval, gsm8k, math500, mbpp, mt-bench, alpaca, worded as in published
        figures; gsm8k:FILE reads its rows from a file.
    target
        Folder of the target model.
    max_new_tokens
        Tokens per completion at most; needed with --prompts.
    conversations
        In the place of --prompts: JSONL of {"messages": [...]} with the assistant's turns, each of
        which becomes a row.
    out
        Folder to write. Run the same command again to continue a stopped one.
    server
        Address of a server that serves the target, e.g. http://localhost:30000.
    limit
        Ask so many of the prompts at most: evenly spread, or for the field's sets the first after
        z-lab's shuffle. The record says so.
    ignore_eos
        Go on past end-of-text tokens.
    thinking
        The chat template's thinking switch; `template` leaves its default.
    json_output
        Print the record as JSON.
    """
    from draftlab.reference.sources import load_prompts

    if conversations is not None:
        asked = (prompts, max_new_tokens, server, limit, ignore_eos, choice, local, asking)
        _refuse_what_decodes(asked)
        record = _take_given(conversations, target, out, thinking)
        print(record.text() if json_output else summary(record, out), end="")
        return
    if not prompts or max_new_tokens is None:
        raise CompletionsError(
            "what to complete, or how far, is not said.",
            mend="Pass --prompts and --max-new-tokens, or --from for answers that are there.",
        )
    _refuse_flags_of_the_other(server, local, asking)
    decoding = choice.decoding()
    loaded = load_prompts(prompts, limit)
    if server:
        from draftlab.reference.collect import collect_reference
        from draftlab.reference.talk import CollectSettings

        settings = CollectSettings(
            url=server,
            max_new_tokens=max_new_tokens,
            ignore_eos=ignore_eos,
            thinking=thinking,
            concurrency=asking.concurrency,
            keep_cut_off=asking.keep_cut_off,
            verify=asking.verify,
            model=asking.model,
            time_limit_seconds=asking.time_limit,
            retries=asking.retries,
            api_key=key_from(asking.api_key_env),
            decoding=decoding,
            source=loaded.source,
        )
        made = collect_reference(
            loaded.prompts,
            target,
            out,
            settings,
            track=bar,
            tell=_say_what_answers,
        )
        record = made.record
    else:
        from draftlab.reference.generate import DecodeSettings

        record = _decode_here(
            loaded,
            target,
            out,
            DecodeSettings(
                max_new_tokens=max_new_tokens,
                ignore_eos=ignore_eos,
                thinking=thinking,
                batch_size=local.batch_size,
                decoding=decoding,
                source=loaded.source,
            ),
            local,
        )
    print(record.text() if json_output else summary(record, out), end="")
    if record.collection is not None and record.collection.verification is not None:
        require_no_difference(record.collection.verification, target)


def _decode_here(
    loaded: PromptList,
    target: Path,
    out: Path,
    settings: DecodeSettings,
    flags: LocalFlags,
) -> ReferenceRecord:
    from draftlab.reference.generate import generate_reference
    from draftlab.target.compute import Compute

    compute, why = Compute.choose_for(target, flags.device, flags.dtype, threads=flags.threads)
    compute.apply()
    say(
        f"reference: {len(loaded.prompts)} prompts, up to {settings.max_new_tokens} tokens each; "
        f"{compute}"
    )
    if why:
        say(f"reference: {why}")
    made = generate_reference(loaded.prompts, target, out, settings, compute, track=bar)
    return made.record


def _take_given(
    path: Path, target: Path, out: Path, thinking: Literal["on", "off", "template"]
) -> ReferenceRecord:
    from draftlab.reference.conversations import read_conversations
    from draftlab.reference.given import given_reference

    conversations = read_conversations(path)
    say(f"reference: {len(conversations)} conversations, taken as they are")
    return given_reference(conversations, target, out, thinking=thinking, track=bar).record


def _refuse_what_decodes(asked: tuple[object, ...]) -> None:
    idle = ("", None, "", None, False, DecodingFlags(), LocalFlags(), ServerFlags())
    if asked != idle:
        raise CompletionsError(
            "--from takes answers as they are; of the other flags it knows --target, --out, "
            "--thinking and --json.",
            mend="Leave the rest out, or pass --prompts to have answers made.",
        )


def _refuse_flags_of_the_other(server: str, local: LocalFlags, asking: ServerFlags) -> None:
    if server and local != LocalFlags():
        raise CompletionsError(
            "--batch-size, --device, --dtype and --threads are for a target that decodes here; "
            "--server was given.",
            mend="Leave them out; the server's share is --concurrency.",
        )
    if not server and asking != ServerFlags():
        raise CompletionsError(
            "--model, --concurrency, --time-limit, --retries, --keep-cut-off, --verify and "
            "--api-key-env are for a server; --server was not given.",
            mend="Pass --server http://host:port, or leave them out.",
        )


def _say_what_answers(facts: ServerFacts) -> None:
    ids = (
        "text only: completions are encoded again, and marked as retokenised"
        if facts.dialect == "text"
        else "token ids in and out"
    )
    say(f"reference: {facts.name} {facts.version}, model {facts.model_id}; {ids}")
