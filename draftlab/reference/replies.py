"""What a server said to one prompt, read from its reply; pure.

Replies are hostile until read: each is checked against a strict model of its dialect, and a field
that is missing or of another type is an error that names it. Fields that are not needed may be
anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, assert_never

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftlab.base.errors import CompletionsError
from draftlab.base.quantities import one_line
from draftlab.reference.completions import Dialect, Finish

T = TypeVar("T")
_TOKEN_NAME = re.compile(r"token_id:([0-9]{1,9})")

Alternatives = tuple[Mapping[int, float], ...]
"""At each place, log-probabilities by token id of some of the most probable tokens, as a server
reports them; empty where it knows none (llama.cpp while it drafts)."""


class Refused(CompletionsError):
    """The server does not answer this one prompt; others may fare better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a server said to one prompt."""

    finish: Finish
    ids: tuple[int, ...] | None = None
    """None where it gives text only."""
    text: str = ""
    prompt_ids: tuple[int, ...] | None = None
    """The prompt as the server read it; None where it does not say."""
    num_prompt_tokens: int | None = None
    split_away: bool = False
    """Reasoning or tool calls were taken out of the text."""
    alternatives: Alternatives | None = None
    """None where it gives none."""


class _Sent(BaseModel):
    """Part of a reply; what we do not read may be anything."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _SglangFinish(_Sent):
    type: str
    matched: int | str | None = None


class _SglangMeta(_Sent):
    finish_reason: _SglangFinish
    prompt_tokens: int | None = None
    output_top_logprobs: tuple[tuple[tuple[float, int, Any], ...] | None, ...] | None = None


class _SglangReply(_Sent):
    output_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...] | None = None
    meta_info: _SglangMeta


class _VllmLogprobs(_Sent):
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None


class _VllmChoice(_Sent):
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...] | None = None
    finish_reason: str | None
    logprobs: _VllmLogprobs | None = None


class _VllmReply(_Sent):
    choices: Annotated[tuple[_VllmChoice, ...], Field(min_length=1)]
    prompt_token_ids: tuple[int, ...] | None = None


class _LlamaToken(_Sent):
    id: int
    logprob: float


class _LlamaPlace(_Sent):
    top_logprobs: tuple[_LlamaToken, ...] = ()


class _LlamaReply(_Sent):
    tokens: tuple[int, ...]
    stop_type: str
    tokens_evaluated: int | None = None
    completion_probabilities: tuple[_LlamaPlace, ...] | None = None


class _Message(_Sent):
    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class _TextChoice(_Sent):
    text: str | None = None
    message: _Message | None = None
    finish_reason: str | None


class _UsageDetails(_Sent):
    reasoning_tokens: int | None = None


class _Usage(_Sent):
    prompt_tokens: int | None = None
    completion_tokens_details: _UsageDetails | None = None


class _TextReply(_Sent):
    choices: Annotated[tuple[_TextChoice, ...], Field(min_length=1)]
    usage: _Usage | None = None


def read_reply(dialect: Dialect, body: bytes) -> Reply:
    """What a server said.

    Raises:
        CompletionsError: this is no reply of that dialect; the message names the field.
        Refused: it ended for another reason than an end of text or the token limit.
    """
    try:
        match dialect:
            case "sglang":
                return _read_sglang(_SglangReply.model_validate_json(body))
            case "vllm":
                return _read_vllm(_VllmReply.model_validate_json(body))
            case "llama.cpp":
                return _read_llama(_LlamaReply.model_validate_json(body))
            case "text":
                return _read_text(_TextReply.model_validate_json(body))
            case new_dialect:
                assert_never(new_dialect)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        place = f"`{where}`: " if where else ""
        raise CompletionsError(
            f"the server's reply is not a {dialect} reply: {place}{first['msg'][:200]} "
            f"(it begins {excerpt(body)!r}).",
            mend="Is this the server itself, in a version that gives token ids?",
        ) from error


def _read_sglang(sent: _SglangReply) -> Reply:
    finish, ids = sent.meta_info.finish_reason, sent.output_ids
    if isinstance(finish.matched, int):
        # The end-of-text token is the last that the target said: added where it was trimmed, and
        # nothing that was drafted beyond it counts.
        length = ids.index(finish.matched) if finish.matched in ids else len(ids)
        ids = (*ids[:length], finish.matched)
    return Reply(
        finish=_finish(finish.type, {"stop": "stop", "length": "length"}),
        ids=ids,
        prompt_ids=sent.prompt_token_ids,
        num_prompt_tokens=sent.meta_info.prompt_tokens,
        alternatives=_each(
            sent.meta_info.output_top_logprobs,
            lambda top: {token: chance for chance, token, _ in top},
        ),
    )


def _read_vllm(sent: _VllmReply) -> Reply:
    choice = sent.choices[0]
    prompt_ids = choice.prompt_token_ids or sent.prompt_token_ids
    finish = _finish(choice.finish_reason, {"stop": "stop", "length": "length"})
    top = choice.logprobs.top_logprobs if choice.logprobs else None
    return Reply(
        finish=finish,
        ids=choice.token_ids,
        prompt_ids=prompt_ids,
        alternatives=_each(top, _by_token_id),
    )


def _read_llama(sent: _LlamaReply) -> Reply:
    finish = _finish(sent.stop_type, {"eos": "stop", "limit": "length"})
    return Reply(
        finish=finish,
        ids=sent.tokens,
        num_prompt_tokens=sent.tokens_evaluated,
        alternatives=_each(
            sent.completion_probabilities,
            lambda place: {token.id: token.logprob for token in place.top_logprobs},
        ),
    )


def _read_text(sent: _TextReply) -> Reply:
    choice, usage = sent.choices[0], sent.usage or _Usage()
    message = choice.message or _Message()
    details = usage.completion_tokens_details or _UsageDetails()
    split = (message.reasoning_content, message.reasoning, message.tool_calls)
    kinds: dict[str, Finish] = {"stop": "stop", "length": "length", "tool_calls": "stop"}
    return Reply(
        finish=_finish(choice.finish_reason, kinds),
        text=(message.content if choice.text is None else choice.text) or "",
        num_prompt_tokens=usage.prompt_tokens or None,  # some say 0 for "not counted"
        split_away=any(split) or bool(details.reasoning_tokens),
    )


def _each(
    places: Sequence[T | None] | None, read: Callable[[T], Mapping[int, float]]
) -> Alternatives | None:
    if places is None:
        return None
    return tuple({} if place is None else read(place) for place in places)


def _by_token_id(top: Mapping[str, float]) -> dict[int, float]:
    """Of names like `token_id:17`, as asked for; texts tell nothing."""
    found = ((_TOKEN_NAME.fullmatch(name), chance) for name, chance in top.items())
    return {int(name.group(1)): chance for name, chance in found if name}


def _finish(said: str | None, kinds: Mapping[str, Finish]) -> Finish:
    if said is not None and said in kinds:
        return kinds[said]
    raise Refused(
        f"the server ended with {one_line(str(said))!r}, which is neither the end of the text nor "
        "the token limit.",
        mend="Look at the server's own log.",
    )


def excerpt(body: bytes) -> str:
    """The beginning of what a server sent, as one line that a terminal may show."""
    return one_line(body[:1000].decode("utf-8", errors="replace"))
