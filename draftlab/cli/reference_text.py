"""What `draftlab reference` prints when it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftlab.base.errors import GateNotMet, TargetError
from draftlab.base.quantities import one_line

if TYPE_CHECKING:
    from draftlab.reference.collection import Collection, GivenCounts, Verification
    from draftlab.reference.completions import ReferenceRecord
    from draftlab.reference.prompts import PromptSource
    from draftlab.target.decoding import Decoding

NEAR_TIE = 0.1
"""Log-probabilities this close may be told apart by the order of additions."""


def summary(record: ReferenceRecord, out: Path) -> str:
    """What was made, in a few lines."""
    if record.given is not None:
        lines = _given_lines(record, record.given, out)
    else:
        lines = [
            f"{record.num_completions} completions, {record.num_tokens:,} tokens, "
            f"{record.num_cut_off} cut off at {record.job.max_new_tokens} -> {out}"
        ]
    how = record.job.decoding
    if record.prompts is not None:
        lines += _prompts_lines(record.prompts, record.job.num_prompts)
    if how is not None and not how.is_greedy:
        lines.append(_sampling_text(how, by_server=record.collection is not None))
    if record.collection is not None:
        lines += _collection_lines(record.collection)
    return "\n".join(lines) + "\n"


def _collection_lines(collection: Collection) -> Iterator[str]:
    from draftlab.reference.collection import reasons_text

    if collection.excluded:
        yield f"{len(collection.excluded)} left out: {reasons_text(collection.excluded)}"
    if collection.num_retokenised:
        share = collection.num_not_round_trip / collection.num_retokenised
        yield (
            f"{collection.num_retokenised} retokenised from text; the text of "
            f"{collection.num_not_round_trip} of them ({share:.1%}) does not survive "
            "encoding and decoding"
        )
    if collection.num_repeats:
        yield f"{collection.num_repeats} samples repeat an earlier one of their prompt"
    checked = collection.verification
    if checked is not None:
        yield (
            f"{checked.num_prompts} asked again, alone and with {checked.in_flight} in flight: "
            f"{len(checked.differences)} differ"
        )


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _given_lines(record: ReferenceRecord, given: GivenCounts, out: Path) -> list[str]:
    total = record.num_tokens + given.num_prompt_tokens
    marks = (
        "the template's own marks say the same"
        if given.marks == "agree"
        else "told apart by rendering with and without each; the template has no marks"
    )
    lines = [
        f"{_counted(record.num_completions, 'turn')} of "
        f"{_counted(given.num_conversations, 'conversation')} -> {out}",
        f"{record.num_tokens / total:.1%} of {total:,} tokens are completion ({marks})",
        "given text: whether the target would say it shows in a capture's agreement",
    ]
    if record.num_cut_off:
        lines.append(f"{record.num_cut_off} have no end-of-text token")
    if given.num_empty_thoughts:
        lines.append(
            f"{given.num_empty_thoughts} follow an empty think block, kept with the prompt"
        )
    if given.num_parted:
        lines.append(
            f"{given.num_parted} encoded apart from their prompts, whose tokens differ alone"
        )
    if given.excluded:
        from draftlab.reference.collection import reasons_text

        lines.append(f"{len(given.excluded)} left out: {reasons_text(given.excluded)}")
    return lines


def _prompts_lines(source: PromptSource, asked: int) -> list[str]:
    """Which prompts these were, where that is more than a file of the user's."""
    if not source.licence and source.selection == "all":
        return []
    which = f"{asked} of {source.num_available}, {source.selection}"
    parts = [which if asked < source.num_available else f"all {asked}"]
    if source.licence:
        parts[:0] = [f"{source.origin}, {source.licence}"]
    if source.form:
        parts.append(source.form)
    return [f"prompts: {source.name}: {'; '.join(parts)}"]


def _sampling_text(how: Decoding, *, by_server: bool) -> str:
    """How the tokens were drawn, and whether what they were drawn with is known."""
    parts = [f"sampled: temperature {how.temperature:g}"]
    if how.top_k:
        parts.append(f"top-k {how.top_k}")
    if how.top_p < 1:
        parts.append(f"top-p {how.top_p:g}")
    parts.append(f"seed {how.seed}, {how.num_samples} per prompt")
    known = (
        "by a server: no log-probabilities, and that it drew so is its word alone"
        if by_server
        else "each token with its log-probability"
    )
    return f"{', '.join(parts)}; {known}"


def require_no_difference(checked: Verification, target: Path) -> None:
    """End the command with 3 where prompts were answered differently; say which tokens first.

    Raises:
        GateNotMet: some were.
    """
    if not checked.differences:
        return
    first = checked.differences[0]
    before, now = _token_names((first.before, first.now), target)
    if first.margin is None:
        margin = f"margin unknown: {first.no_margin}"
    else:
        nearly = ", a near tie" if abs(first.margin) < NEAR_TIE else ""
        margin = f"margin {first.margin:.3g}{nearly}"
    raise GateNotMet(
        f"{len(checked.differences)} of {checked.num_prompts} prompts were answered differently; "
        f"first {first.id!r}, {first.when}: completion token {first.index} was {before}, then "
        f"{now} ({margin}).",
        mend="Collect with --concurrency 1 into another --out, or look for what the server shares "
        "between requests; the reference is written and says so.",
    )


def _token_names(tokens: Sequence[int | None], target: Path) -> list[str]:
    """Each token with its text, where the target's tokenizer can be read."""
    from draftlab.target.tokenizer import TokenizerFiles

    try:
        tokenizer = TokenizerFiles(target)
    except TargetError:
        return ["the end" if token is None else str(token) for token in tokens]
    return [
        "the end" if token is None else f"{token} {one_line(repr(tokenizer.decode([token])))}"
        for token in tokens
    ]
