"""Conversations that exist already, as a reference: each of the assistant's turns is a row.

In:   JSON lines {"messages": [...]}, the target's tokenizer files.  Out: a reference folder.

What the target is told and what it is to say are parted by rendering twice with the target's own
template (conversations.py); where the template has `{% generation %}` marks, they must agree. The
row ends with the turn's end-of-text token. A turn that cannot be a row is left out, with its
reason:

    nothing stands before it  it opens the conversation
    empty, too short          there is nothing to draft
    goes on after its end     an end-of-text token stands within it: the target would have ended

The target need not have written these texts. A drafter that is trained on them learns them as they
are; how much of them the target itself would say shows in a capture's agreement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from draftlab.base.errors import CompletionsError
from draftlab.base.progress import Track, silent
from draftlab.base.records import Provenance, sha256_json
from draftlab.reference.answers import shortness
from draftlab.reference.collection import Excluded, GivenCounts, Reason, reasons_text
from draftlab.reference.completions import (
    Completion,
    Finish,
    GivenText,
    Reference,
    ReferenceJob,
    Thinking,
    finished,
    write_reference,
)
from draftlab.reference.conversations import (
    ASSISTANT,
    Conversation,
    Parted,
    part,
    require_same_marks,
)
from draftlab.reference.encode import PromptEncoder
from draftlab.target.facts import TargetFacts
from draftlab.target.tokenizer import TokenizerFiles, tokenizer_digest


@dataclass(frozen=True, slots=True)
class _Turned:
    """What became of one turn."""

    row: Completion
    reason: Reason | None
    has_empty_thought: bool = False
    is_parted: bool = False


def given_reference(
    conversations: Sequence[Conversation],
    target_folder: Path,
    out: Path,
    *,
    thinking: Thinking = "template",
    track: Track = silent,
) -> Reference:
    """Take the assistant's turns as completions and write a reference folder.

    Raises:
        CompletionsError: the template refuses a conversation or its marks do not agree, no turn or
            every token is completion, no turn ends, or `out` holds another reference.
        TargetError: the target's tokenizer or template cannot be used.
    """
    turns = _Turns(target_folder, thinking)
    stream = track(conversations, total=len(conversations), what="reference", unit="conversations")
    turned = [one for conversation in stream for one in turns.of(conversation)]
    rows = [one.row for one in turned if one.reason is None]
    excluded = [Excluded(id=one.row.id, reason=one.reason) for one in turned if one.reason]
    _require_both(turned, rows, turns.ends)
    contents = [[one.key, one.domain, one.rendered_from] for one in conversations]
    job = ReferenceJob(
        prompts_digest=sha256_json(contents),
        num_prompts=len(turned),
        made_by=GivenText(tokenizer_digest=tokenizer_digest(target_folder)),
        max_new_tokens=max(len(row.completion_ids) for row in rows),
        ignore_eos=False,
        decoding=None,
        thinking=thinking,
        template_digest=turns.encoder.template_digest,
        keep_cut_off=True,
    )
    done = finished(out, job)
    if done is not None:
        return done
    kept = [one for one in turned if one.reason is None]
    counts = GivenCounts(
        num_conversations=len(conversations),
        num_prompt_tokens=sum(len(row.prompt_ids) for row in rows),
        num_empty_thoughts=sum(one.has_empty_thought for one in kept),
        num_parted=sum(one.is_parted for one in kept),
        marks="agree" if turns.has_marks else "none",
        excluded=tuple(excluded),
    )
    return write_reference(out, job, rows, counts, Provenance.now())


class _Turns:
    """Makes rows of conversations, with one target's template and tokenizer."""

    def __init__(self, folder: Path, thinking: Thinking) -> None:
        facts = TargetFacts.from_folder(folder)
        self._tokenizer = TokenizerFiles(folder)
        self._vocab_size = facts.vocab_size
        self.ends = facts.eos_token_ids
        self.encoder = PromptEncoder(folder, thinking, lambda _: self._tokenizer)
        self.has_marks = False

    def of(self, conversation: Conversation) -> Iterator[_Turned]:
        """What becomes of each of the assistant's turns, in order."""
        messages, number = conversation.rendered_from, 0
        for place, turn in enumerate(conversation.messages):
            if turn.role != ASSISTANT:
                continue
            number += 1
            key = f"{conversation.key}/{number}"
            if place == 0:
                row = self._row(key, conversation.domain, ((), ()), "length")
                yield _Turned(row, "nothing stands before it")
                continue
            parted = self._parted(messages[: place + 1], key)
            yield self._turned(parted, key, conversation.domain)

    def _parted(self, messages: Sequence[dict[str, str]], key: str) -> Parted:
        opened = self.encoder.render(messages[:-1], key)
        whole = self.encoder.render(messages, key, opens_answer=False)
        parted = part(opened, whole, key)
        spans = self._marks(messages, key)
        if spans is not None:
            self.has_marks = True
            require_same_marks(parted, spans, key)
        return parted

    def _marks(self, messages: Sequence[dict[str, str]], key: str) -> list[tuple[int, int]] | None:
        try:
            return self._tokenizer.said_by_assistant(messages, self.encoder.switch)
        except jinja2.TemplateError as error:
            raise CompletionsError(
                f"conversation {key!r}: the chat template refuses it: {error}.",
                mend="Look at its roles and their order.",
            ) from error

    def _turned(self, parted: Parted, key: str, domain: str) -> _Turned:
        prompt_ids = self._tokenizer.encode(parted.prompt, special=False)
        joint = self._tokenizer.encode(parted.prompt + parted.answer, special=False)
        is_parted = joint[: len(prompt_ids)] != prompt_ids
        answer = (
            self._tokenizer.encode(parted.answer, special=False)
            if is_parted
            else joint[len(prompt_ids) :]
        )
        end = next((i for i, token in enumerate(answer) if token in self.ends), None)
        finish: Finish = "length" if end is None else "stop"
        said = answer if end is None else answer[: end + 1]
        reason = shortness(said, finish)
        if not prompt_ids:
            reason = "nothing stands before it"
        elif self._tokenizer.decode(answer[len(said) :]).strip():
            reason = "goes on after its end"
        row = self._row(key, domain, (prompt_ids, said), finish)
        return _Turned(row, reason, parted.has_empty_thought, is_parted)

    def _row(
        self,
        key: str,
        domain: str,
        texts: tuple[tuple[int, ...], tuple[int, ...]],
        finish: Finish,
    ) -> Completion:
        prompt_ids, completion_ids = texts
        strange = max((*prompt_ids, *completion_ids, 0))
        if strange >= self._vocab_size:
            raise CompletionsError(
                f"conversation {key!r} has token id {strange}; the target's ids end at "
                f"{self._vocab_size - 1}.",
                mend="Does the tokenizer in --target belong to this model?",
            )
        return Completion(
            id=key,
            domain=domain,
            prompt_ids=prompt_ids,
            completion_ids=completion_ids,
            finish=finish,
            ids_from="given",
        )


def _require_both(
    turned: Sequence[_Turned], rows: Sequence[Completion], ends: Sequence[int]
) -> None:
    """Refuse what would be learned wrong without a sound: no answers, nothing else, no ends."""
    excluded = [Excluded(id=one.row.id, reason=one.reason) for one in turned if one.reason]
    if not any(one.row.prompt_ids for one in turned):
        raise CompletionsError(
            f"100 % of the tokens are completion: the template writes nothing before any of the "
            f"{len(turned)} turns.",
            mend="Look at the chat template in --target.",
        )
    if not rows:
        raise CompletionsError(
            f"0 % of the tokens are completion: none of the {len(turned)} turns of the assistant "
            f"is a row ({reasons_text(excluded)}).",
            mend="Look at one of these conversations, and at the chat template in --target.",
        )
    if all(row.finish == "length" for row in rows):
        raise CompletionsError(
            f"none of the {len(rows)} turns ends with an end-of-text token of the target "
            f"({', '.join(map(str, ends)) or 'it has none'}): where to end could not be learned.",
            mend="Check eos_token_id in the target's config.json and generation_config.json.",
        )
