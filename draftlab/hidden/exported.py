"""What a server sent of a row's hidden states, read and checked; nothing short or strange passes.

In:   the reply's bytes, or the file that it names.  Out: states, and log-probabilities.

Shape letters: as in export.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from torch import Tensor

from draftlab.base.errors import StoreError
from draftlab.base.quantities import one_line
from draftlab.hidden.export import Exported, Exporter, Wanted, how_to_start
from draftlab.hidden.state_file import StateFile
from draftlab.hidden.store import require_finite

_TOO_FEW = (
    "Look at the server: a prefix cache, a prefill in chunks (SGLang: --chunked-prefill-size -1) "
    "or the limit of its context leaves states out."
)


class _Sent(BaseModel):
    model_config = ConfigDict(extra="ignore")


_Triple = tuple[float | None, int, Any]
"""Log-probability, token id, text."""


class _SglangMeta(_Sent):
    hidden_states: Any = None
    input_token_logprobs: list[_Triple] = []
    input_top_logprobs: list[list[_Triple] | None] = []


class _SglangReply(_Sent):
    prompt_token_ids: tuple[int, ...] | None = None
    meta_info: _SglangMeta


class _VllmScore(_Sent):
    logprob: float


class _VllmChoice(_Sent):
    prompt_logprobs: list[dict[int, _VllmScore] | None] | None = None


class _VllmFile(_Sent):
    hidden_states_path: str | None = None


class _VllmReply(_Sent):
    choices: Annotated[tuple[_VllmChoice, ...], Field(min_length=1)]
    kv_transfer_params: _VllmFile | None = None


def read_exported(
    exporter: Exporter, body: bytes, wanted: Wanted, *, time_limit_seconds: float, keep_file: bool
) -> Exported:
    """States and log-probabilities of one row.

    Args:
        exporter: what the server is.
        body: its reply.
        wanted: what it was asked for.
        time_limit_seconds: how long to wait for a file that it names.
        keep_file: leave that file where it is; else it is removed once it has been read.

    Raises:
        StoreError: no states, too few or too many of them, of other tokens or another width, or
            some that are not finite; or log-probabilities are missing.
    """
    try:
        value = from_json(body)
        if exporter == "sglang":
            return _from_sglang(_SglangReply.model_validate(value), wanted)
        reply = _VllmReply.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _strange(wanted, f"`{where}`: {one_line(first['msg'])}") from error
    except ValueError as error:
        raise _strange(wanted, one_line(str(error))) from error
    path = reply.kv_transfer_params and reply.kv_transfer_params.hidden_states_path
    if not path:
        raise _no_states("vllm", wanted)
    file = StateFile(Path(path))
    states_TC = _from_file(file, wanted, time_limit_seconds)
    exported = _exported(states_TC, _vllm_scores(reply.choices[0], wanted), wanted)
    if not keep_file:  # its tokens are those of this row: it was made for this request
        file.remove()
    return exported


def _from_sglang(reply: _SglangReply, wanted: Wanted) -> Exported:
    if not reply.meta_info.hidden_states:
        raise _no_states("sglang", wanted)
    if reply.prompt_token_ids not in (None, wanted.ids):
        raise _other_tokens(wanted)
    states_TC = _numbers(_rows_of(reply.meta_info.hidden_states), wanted)
    return _exported(states_TC, _sglang_scores(reply.meta_info, wanted), wanted)


def _rows_of(sent: Any) -> list[Any]:
    """Vectors of positions: SGLang puts those of a prefill into one list within the list."""
    rows: list[Any] = []
    for item in sent if isinstance(sent, list) else [sent]:
        nested = isinstance(item, list) and bool(item) and isinstance(item[0], list)
        rows.extend(item if nested else [item])
    return rows


def _numbers(rows: list[Any], wanted: Wanted) -> Tensor:
    _require_rows(len(rows), wanted)
    width = len(rows[0]) if isinstance(rows[0], list) else 0
    _require_width(width, wanted)
    try:
        wide = np.array(rows, dtype=np.float64)  # null, which some write for NaN, becomes NaN
    except (TypeError, ValueError) as error:
        raise _strange(wanted, "hidden states that are not vectors of numbers") from error
    narrow = torch.from_numpy(wide.astype(np.float32))
    if not np.array_equal(narrow.numpy().astype(np.float64), wide, equal_nan=True):
        raise _strange(wanted, "hidden states that are no float32 numbers")
    return narrow


def _from_file(file: StateFile, wanted: Wanted, time_limit_seconds: float) -> Tensor:
    tokens, states = file.read(time_limit_seconds)
    # D02: some files have the ids of every token and the states of those that were not cached.
    _require_rows(len(states), wanted)
    if tokens != wanted.ids:
        raise _other_tokens(wanted)
    _require_width(states.shape[1] * states.shape[2], wanted)
    return states.flatten(1).float()


Scores = tuple[float, Mapping[int, float]]
"""Of one token: its own log-probability, and those of the most probable ones."""


def _sglang_scores(meta: _SglangMeta, wanted: Wanted) -> list[Scores]:
    own, top = meta.input_token_logprobs, meta.input_top_logprobs
    if len(own) != len(wanted.ids) or len(top) != len(wanted.ids):
        raise _no_scores(wanted)
    first = len(wanted.row.prompt_ids)
    scores: list[Scores] = []
    for (logprob, _, _), best in zip(own[first:], top[first:], strict=True):
        found = {token: score for score, token, _ in best or () if score is not None}
        if logprob is None or len(found) < 2:
            raise _no_scores(wanted)
        scores.append((logprob, found))
    return scores


def _vllm_scores(choice: _VllmChoice, wanted: Wanted) -> list[Scores]:
    sent = choice.prompt_logprobs or []
    if len(sent) != len(wanted.ids):
        raise _no_scores(wanted)
    scores: list[Scores] = []
    for token, entry in zip(
        wanted.row.completion_ids, sent[len(wanted.row.prompt_ids) :], strict=True
    ):
        found = {known: score.logprob for known, score in (entry or {}).items()}
        if token not in found or len(found) < 2:
            raise _no_scores(wanted)
        scores.append((found[token], found))
    return scores


def _exported(states_TC: Tensor, scores: Sequence[Scores], wanted: Wanted) -> Exported:
    require_finite(states_TC, wanted.row.id, wanted.target_layer_ids)
    argmax, margins = [], []
    for _, found in scores:
        # The first of equals, as in every capture.
        (best, token), (second, _) = sorted((-score, token) for token, score in found.items())[:2]
        argmax.append(token)
        margins.append(second - best)
    logprobs_n = torch.tensor([own for own, _ in scores])
    if not bool(torch.isfinite(logprobs_n).all()):
        raise _strange(wanted, "log-probabilities that are not finite")
    return Exported(
        states_TC, torch.tensor(argmax, dtype=torch.int32), logprobs_n, torch.tensor(margins)
    )


def _require_rows(count: int, wanted: Wanted) -> None:
    if count != len(wanted.ids):
        raise StoreError(
            f"row {wanted.row.id!r}: the server gave the states of {count} positions for "
            f"{len(wanted.ids)} tokens.",
            mend=_TOO_FEW,
        )


def _require_width(width: int, wanted: Wanted) -> None:
    if width != wanted.width:
        raise StoreError(
            f"row {wanted.row.id!r}: the server gives {width} values for each position; "
            f"{len(wanted.target_layer_ids)} layers of {wanted.hidden_size} are {wanted.width}.",
            mend="Give --layers or --drafter with the layers that the server was started for; "
            "most models in SGLang cannot give their last one.",
        )


def _other_tokens(wanted: Wanted) -> StoreError:
    return StoreError(
        f"row {wanted.row.id!r}: the server gave the states of other tokens.",
        mend="Look at the server: it adds to prompts, or mixes up requests.",
    )


def _no_states(exporter: Exporter, wanted: Wanted) -> StoreError:
    return StoreError(
        f"row {wanted.row.id!r}: the server gave no hidden states.",
        mend=how_to_start(exporter, wanted.target_layer_ids),
    )


def _no_scores(wanted: Wanted) -> StoreError:
    return StoreError(
        f"row {wanted.row.id!r}: the server gave no log-probabilities of the row's tokens.",
        mend="Look at the server: it must answer with the log-probabilities of prompts.",
    )


def _strange(wanted: Wanted, what: str) -> StoreError:
    return StoreError(
        f"row {wanted.row.id!r}: this is no answer with hidden states: {what}.",
        mend="Is this the server itself, in a version that gives hidden states?",
    )
