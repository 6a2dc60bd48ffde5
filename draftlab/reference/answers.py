"""From what a server said to a row of the reference, or to the reason why it is none; pure.

A reply that contradicts the request (another prompt, ids that the target does not have, more tokens
than allowed) stops the run: such a server is not the one that was meant. What a server may do
honestly and what is still no reference row is kept apart with its reason:

    prompt read differently  a server that renders the chat itself counts other prompt tokens than
                             the target's template gives: another template, thinking mode or BOS
    split away               reasoning or tool calls were taken out: the text is not what was said
    empty                    nothing was said
    too short                one token: nothing is left to draft after the anchor
    cut off                  ended at a token limit, the request's or the server's own
"""

from __future__ import annotations

from collections.abc import Callable

from draftlab.base.errors import CompletionsError
from draftlab.base.records import Record
from draftlab.reference.collection import Reason
from draftlab.reference.completions import Finish, IdsFrom
from draftlab.reference.encode import Tokenizer
from draftlab.reference.replies import Reply
from draftlab.reference.samples import Key

_LOST = "\ufffd"
"""What servers write for bytes that are no text. It survives encoding and decoding; they do not."""
_ANOTHER_MODEL = "Does this server serve the model in --target? Nothing of this reply was kept."


class Answer(Record):
    """One prompt, by its tokens, and one thing that the server said to it."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    finish: Finish
    ids_from: IdsFrom
    round_trip: bool
    """Whether the text of these ids encodes to text that is the same again and has lost no byte
    already; true of a server's own ids, which are not made from text."""
    flaw: Reason | None
    """What keeps it from being a reference row whatever the settings."""
    sample: int = 0
    """Which of the prompt's samples it is."""

    @property
    def key(self) -> Key:
        """What it answers."""
        return self.prompt_ids, self.sample


def answer_of(
    reply: Reply,
    prompt_ids: tuple[int, ...],
    vocab_size: int,
    max_new_tokens: int,
    tokenizer: Callable[[], Tokenizer],
) -> Answer:
    """Check a reply against what was asked.

    Raises:
        CompletionsError: the server read another prompt, or says what the target cannot.
    """
    if reply.ids is None:
        return _from_text(reply, prompt_ids, vocab_size, tokenizer())
    _require_same_prompt(reply, prompt_ids)
    _require_known_ids(reply.ids, vocab_size)
    if len(reply.ids) > max_new_tokens:
        raise CompletionsError(
            f"the server sent {len(reply.ids)} tokens where {max_new_tokens} were asked for.",
            mend="Look at the server: it does not keep to the request.",
        )
    return Answer(
        prompt_ids=prompt_ids,
        completion_ids=reply.ids,
        finish=reply.finish,
        ids_from="server",
        round_trip=True,
        flaw=shortness(reply.ids, reply.finish),
    )


def why_excluded(answer: Answer, *, keep_cut_off: bool) -> Reason | None:
    """Why an answer is no reference row; None where it is one."""
    if answer.flaw is None and answer.finish == "length" and not keep_cut_off:
        return "cut off"
    return answer.flaw


def first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """How many tokens two completions share from the start; None where they are the same."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _from_text(
    reply: Reply, prompt_ids: tuple[int, ...], vocab_size: int, tokenizer: Tokenizer
) -> Answer:
    ids = tokenizer.encode(reply.text, special=False)
    _require_known_ids(ids, vocab_size)
    flaw = shortness(ids, "length")  # text shows no end-of-text token
    if reply.split_away:
        flaw = "split away"
    if reply.num_prompt_tokens not in (None, len(prompt_ids)):
        flaw = "prompt read differently"
    return Answer(
        prompt_ids=prompt_ids,
        completion_ids=ids,
        finish=reply.finish,
        ids_from="retokenised",
        round_trip=_LOST not in reply.text and tokenizer.decode(ids) == reply.text,
        flaw=flaw,
    )


def shortness(ids: tuple[int, ...], finish: Finish) -> Reason | None:
    """Why so short an answer leaves nothing to draft; None where it is long enough."""
    if not ids or (len(ids) == 1 and finish == "stop"):
        return "empty"
    return "too short" if len(ids) == 1 else None


def _require_same_prompt(reply: Reply, prompt_ids: tuple[int, ...]) -> None:
    read = reply.prompt_ids
    if read is not None and read != prompt_ids:
        index = first_difference(read, prompt_ids)
        raise CompletionsError(
            f"the server read another prompt than it was sent: {len(read)} tokens, not "
            f"{len(prompt_ids)}, and the first {index} are the same.",
            mend="Look at the server: it adds to prompts, or mixes up requests.",
        )
    if reply.num_prompt_tokens not in (None, len(prompt_ids)):
        raise CompletionsError(
            f"the server counts {reply.num_prompt_tokens} prompt tokens; {len(prompt_ids)} were "
            "sent.",
            mend="Look at the server: it cuts or adds to prompts.",
        )


def _require_known_ids(ids: tuple[int, ...], vocab_size: int) -> None:
    strange = next((token for token in ids if not 0 <= token < vocab_size), None)
    if strange is not None:
        raise CompletionsError(
            f"the server says token id {strange}; the target's ids end at {vocab_size - 1}.",
            mend=_ANOTHER_MODEL,
        )
