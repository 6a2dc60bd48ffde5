"""Completions by a server: asked many at a time, checked one by one, kept as they come.

In:   prompts, a server's address, the target's tokenizer files.  Out: a reference folder.

Prompts are rendered and encoded here, with the target's own tokenizer, and sent as token ids where
the server takes them. Rows are known by their prompt's token ids and by which of its samples they
are, not by place or name: a stopped run that goes on with a shuffled, shortened or longer prompt
file, or with more samples, asks for nothing twice and misses nothing.

Rows cut off at the token limit are left out unless `keep_cut_off`. A local target decodes as many
tokens as one can wait for on this machine, so there nearly every row is cut and all are kept; a
server is asked for whole answers, and one that does not end within the limit is mostly a loop or
an unfinished thought, which would weigh most in every token average. What was said before the cut
is exact either way, so keeping it is sound where the limit was chosen for the replay; with
`ignore_eos` every row is cut on purpose and kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from draftlab.base.errors import CompletionsError, DraftlabError, Unfinished, Unreachable
from draftlab.base.progress import Track, silent
from draftlab.base.quantities import listing
from draftlab.base.records import Provenance, sha256_json
from draftlab.reference.answers import Answer, why_excluded
from draftlab.reference.client import Address, ServerClient
from draftlab.reference.collection import Collection, Excluded, Verification, reasons_text
from draftlab.reference.completions import (
    RECORD_NAME,
    Completion,
    Reference,
    ReferenceJob,
    finished,
    write_reference,
)
from draftlab.reference.inflight import in_flight, require_no_event_loop
from draftlab.reference.partial import PartialRows
from draftlab.reference.prompts import Prompt
from draftlab.reference.samples import Key
from draftlab.reference.servers import ServerFacts
from draftlab.reference.talk import CollectSettings, Talk
from draftlab.reference.verify import Question, spread, verify

GIVE_UP_AFTER = 3
"""Prompts in a row without an answer before the server counts as gone."""

Answers = dict[Key, Answer]
"""By the prompt's token ids and which of its samples it is."""


def collect_reference(
    prompts: Sequence[Prompt],
    target_folder: Path,
    out: Path,
    settings: CollectSettings,
    *,
    track: Track = silent,
    tell: Callable[[ServerFacts], None] = lambda facts: None,
) -> Reference:
    """Let a server complete every prompt and write a reference folder.

    Safe to stop and run again: answered prompts are not asked again. `tell` is called once, with
    what answers there. What `settings.verify` found is in the record; it raises nothing.

    Raises:
        Unreachable: nothing answers at `settings.url`, or it has stopped answering.
        Unfinished: some prompts got no answer; the others are kept for the next run.
        CompletionsError: a prompt cannot be rendered, the server says what cannot be, no answer
            can be used, or `out` holds another reference.
    """
    address = Address.read(settings.url)
    require_no_event_loop("collect_reference")
    with asyncio.Runner() as runner:
        client = ServerClient(address, settings.patience, settings.api_key)
        try:
            talk = Talk(prompts, target_folder, settings, client)
            facts = runner.run(talk.meet())
            tell(facts)
            job = talk.job(facts)
            done = finished(out, job)
            if done is not None:
                return _verified_now(runner, talk, done, track)
            partial = PartialRows(out, _resume_digest(job), Answer)
            answers = _gather(runner, talk, partial, track)
            rows, excluded = _rows(talk, answers)
            checked = _verification(runner, talk, rows, track)
            collection = _collection(talk, address, answers, excluded, checked)
            made_now = _provenance(settings.url, address)
            made = write_reference(out, job, rows, collection, made_now, source=settings.source)
            partial.drop()
            return made
        finally:
            runner.run(client.close())


def _resume_digest(job: ReferenceJob) -> str:
    """Of what decides an answer; which prompts are asked, and in which order, decides none."""
    given = job.model_dump(mode="json", exclude={"prompts_digest", "num_prompts", "keep_cut_off"})
    given["decoding"].pop("num_samples")
    return sha256_json(given)


def _gather(
    runner: asyncio.Runner, talk: Talk, partial: PartialRows[Answer], track: Track
) -> Answers:
    """Every prompt's answer: those of earlier runs, and the rest asked now."""
    answers = {answer.key: answer for answer in partial.start()}
    numbers = {sample.key: n for n, sample in enumerate(talk.samples)}  # equal ones are asked once
    todo = [n for key, n in numbers.items() if key not in answers]
    unanswered: dict[str, DraftlabError] = {}
    in_a_row = 0
    with closing(in_flight(runner, talk.ask, todo, talk.settings.concurrency)) as stream:
        for number, outcome in track(stream, total=len(todo), what="reference", unit=talk.unit):
            if isinstance(outcome, Answer):
                partial.append([outcome])
                answers[outcome.key] = outcome
                in_a_row = 0
                continue
            unanswered[talk.samples[number].id] = outcome
            in_a_row += 1
            # A server that refuses some prompts and answers others is not gone.
            is_gone = isinstance(outcome, Unreachable) or not answers
            if is_gone and in_a_row >= min(GIVE_UP_AFTER, len(todo)):
                raise _gone(outcome, f"{len(answers)} of {len(numbers)} {talk.unit}")
    if unanswered:
        first, error = next(iter(unanswered.items()))
        raise Unfinished(
            f"{len(unanswered)} of {len(numbers)} {talk.unit} got no answer: "
            f"{listing(list(unanswered))}; {first!r}: {error}",
            mend="Run the same command again to ask these again, or take them out of the prompt "
            "file; the other answers are kept.",
        )
    return answers


def _gone(last: DraftlabError, kept: str) -> DraftlabError:
    """The last error of a server that has stopped answering, with what is kept."""
    return type(last)(f"{last} {kept} are answered and kept.", mend=last.mend)


def _rows(talk: Talk, answers: Answers) -> tuple[list[Completion], list[Excluded]]:
    """The reference's rows in the order of the prompts, and the prompts that have none."""
    rows, excluded = [], []
    for sample in talk.samples:
        answer = answers[sample.key]
        reason = why_excluded(answer, keep_cut_off=talk.settings.keeps_cut_off)
        if reason is not None:
            excluded.append(Excluded(id=sample.id, reason=reason))
            continue
        row = Completion(
            id=sample.id,
            domain=sample.prompt.domain,
            prompt_ids=sample.prompt_ids,
            completion_ids=answer.completion_ids,
            finish=answer.finish,
            ids_from=answer.ids_from,
            sample=sample.index,
        )
        rows.append(row)
    if not rows:
        cut = any(one.reason == "cut off" for one in excluded)
        raise CompletionsError(
            f"none of the {len(excluded)} answers is a reference row: {reasons_text(excluded)}.",
            mend="Pass a larger --max-new-tokens with another --out, or --keep-cut-off."
            if cut
            else "Look at what the server says to one of these prompts.",
        )
    return rows, excluded


def _verification(
    runner: asyncio.Runner, talk: Talk, rows: Sequence[Completion], track: Track
) -> Verification | None:
    settings = talk.settings
    if not settings.verify:
        return None
    numbers = {sample.id: n for n, sample in enumerate(talk.samples)}
    said = [Question(row.id, numbers[row.id], row.completion_ids) for row in rows]
    chosen = spread(said, settings.verify)
    return verify(runner, talk.ask_again, chosen, settings.concurrency, track)


def _verified_now(runner: asyncio.Runner, talk: Talk, done: Reference, track: Track) -> Reference:
    """A finished reference; asked again first where that is wanted and was never done."""
    collection = done.record.collection
    if collection is None or collection.verification is not None:
        return done
    checked = _verification(runner, talk, done.completions, track)
    if checked is None:
        return done
    collection = collection.model_copy(update={"verification": checked})
    record = done.record.model_copy(update={"collection": collection})
    record.save(done.folder / RECORD_NAME)
    return Reference(done.folder, record, done.completions)


def _collection(
    talk: Talk,
    address: Address,
    answers: Answers,
    excluded: Sequence[Excluded],
    verification: Verification | None,
) -> Collection:
    asked = [answers[sample.key] for sample in talk.samples]
    retokenised = [answer for answer in asked if answer.ids_from == "retokenised"]
    return Collection(
        address=address.shown,
        concurrency=talk.settings.concurrency,
        time_limit_seconds=talk.settings.time_limit_seconds,
        retries=talk.settings.retries,
        num_retried=talk.client.num_retried,
        excluded=tuple(excluded),
        num_retokenised=len(retokenised),
        num_not_round_trip=sum(not answer.round_trip for answer in retokenised),
        num_repeats=_num_repeats(talk, answers),
        verification=verification,
    )


def _num_repeats(talk: Talk, answers: Answers) -> int:
    keys = {sample.key for sample in talk.samples}
    return len(keys) - len({(answers[key].prompt_ids, answers[key].completion_ids) for key in keys})


def _provenance(url: str, address: Address) -> Provenance:
    """The command line with the server as records may show it."""
    now = Provenance.now()
    command = tuple(part.replace(url, address.shown) for part in now.command)
    return now.model_copy(update={"command": command})
