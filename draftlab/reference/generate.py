"""Completions by a local target, greedy or sampled, through transformers.

In:   prompts, a target folder.  Out: a reference folder.

Prompts of one batch are padded on the left and decoded together. The batches are laid out once,
from all prompts, so that a run that was stopped and continued decodes the same batches and ends in
the same bytes. Sampled rows draw from generators of their own (draws.py), so what a row says does
not hang on who shares its batch, but for what the order of additions does to the last bits.
Whether a batched, cached decoding agrees with a plain pass of the target is not assumed: capture
compares every reference token with the target's own argmax and states the share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.base.errors import CompletionsError
from draftlab.base.progress import Track, silent
from draftlab.base.records import Provenance, sha256_json
from draftlab.reference.completions import (
    Completion,
    LocalTarget,
    Reference,
    ReferenceJob,
    Thinking,
    finished,
    write_reference,
)
from draftlab.reference.draws import Draws
from draftlab.reference.encode import PromptEncoder
from draftlab.reference.leaving import decode_together
from draftlab.reference.partial import PartialRows
from draftlab.reference.prompts import Prompt, PromptSource, prompts_digest
from draftlab.reference.samples import Sample, samples_of
from draftlab.target.compute import Compute
from draftlab.target.decoding import GREEDY, Decoding
from draftlab.target.loading import LoadedTarget, load_target, load_tokenizer

DEFAULT_BATCH_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSettings:
    """How to decode."""

    max_new_tokens: int
    """Tokens per completion at most."""
    ignore_eos: bool = False
    """Go on past end-of-text tokens, so that every completion has the same length."""
    thinking: Thinking = "template"
    batch_size: int = DEFAULT_BATCH_SIZE
    """Completions decoded together."""
    decoding: Decoding = GREEDY
    source: PromptSource | None = None
    """Where the prompts came from, for the record."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 2:
            raise CompletionsError(
                f"max_new_tokens is {self.max_new_tokens}: nothing is left to draft after "
                "the first token.",
                mend="Pass --max-new-tokens 2 or more.",
            )
        if self.batch_size < 1:
            raise CompletionsError(f"batch size is {self.batch_size}.", mend="Pass 1 or more.")


def generate_reference(
    prompts: Sequence[Prompt],
    target_folder: Path,
    out: Path,
    settings: DecodeSettings,
    compute: Compute,
    *,
    track: Track = silent,
) -> Reference:
    """Complete every prompt and write a reference folder.

    Safe to stop and run again: finished batches are not decoded twice. A finished reference of the
    same job is returned as it is.

    Raises:
        CompletionsError: a prompt cannot be rendered, or `out` holds another reference.
        TargetError: the target cannot be loaded.
    """
    target = load_target(target_folder, compute)
    encoder = PromptEncoder(target_folder, settings.thinking, _TransformersTokenizer)
    encoded = [encoder.encode(prompt, target.facts.vocab_size) for prompt in prompts]
    samples = samples_of(prompts, encoded, settings.decoding)
    job = ReferenceJob(
        prompts_digest=prompts_digest(prompts),
        num_prompts=len(prompts),
        made_by=LocalTarget(
            fingerprint=target.fingerprint,
            architecture=target.facts.architecture,
            device=compute.device,
            dtype=compute.dtype,
            batch_size=settings.batch_size,
        ),
        max_new_tokens=settings.max_new_tokens,
        ignore_eos=settings.ignore_eos,
        decoding=settings.decoding,
        thinking=settings.thinking,
        template_digest=encoder.template_digest,
        keep_cut_off=True,
    )
    done = finished(out, job)
    if done is not None:
        return done
    partial = PartialRows(out, sha256_json(job.model_dump(mode="json")), Completion)
    rows = {row.id: row for row in partial.start()}
    batches = _batches(samples, settings.batch_size)
    for batch in track(batches, total=len(batches), what="reference", unit="batches"):
        if all(sample.id in rows for sample in batch):
            continue
        fresh = _complete(target, batch, settings)
        partial.append(fresh)
        rows.update({row.id: row for row in fresh})
    kept = [rows[sample.id] for sample in samples]
    reference = write_reference(out, job, kept, None, Provenance.now(), source=settings.source)
    partial.drop()
    return reference


class _TransformersTokenizer:
    """The target's tokenizer as transformers reads it, files of every kind."""

    def __init__(self, folder: Path) -> None:
        self._loaded: Any = load_tokenizer(folder)  # its classes are not typed
        self.chat_template = str(self._loaded.chat_template or "")

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Token ids of a text; with `special`, those that frame every text too."""
        return tuple(self._loaded(text, add_special_tokens=special)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        return str(self._loaded.decode(list(ids)))

    def render(
        self,
        messages: Sequence[dict[str, str]],
        switch: Mapping[str, bool],
        *,
        opens_answer: bool = True,
    ) -> str:
        """A conversation as text; with `opens_answer`, as the text that opens the next answer."""
        return str(
            self._loaded.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=opens_answer, **switch
            )
        )


def _batches(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Batches of like prompt length, longest first (the memory peak comes at once)."""
    order = sorted(samples, key=lambda sample: -len(sample.prompt_ids))  # stable
    return [order[start : start + size] for start in range(0, len(order), size)]


def _complete(
    target: LoadedTarget, batch: Sequence[Sample], settings: DecodeSettings
) -> list[Completion]:
    """Completions of prompts decoded together."""
    stops = () if settings.ignore_eos else target.facts.eos_token_ids
    draws = None
    if not settings.decoding.is_greedy:
        draws = Draws(settings.decoding, [sample.seed for sample in batch], settings.max_new_tokens)
    prompts = [sample.prompt_ids for sample in batch]
    texts = decode_together(target, prompts, settings.max_new_tokens, stops, draws)
    log_probs = [None] * len(batch) if draws is None else draws.log_probs(list(map(len, texts)))
    return [
        _row(sample, ids, found, target)
        for sample, ids, found in zip(batch, texts, log_probs, strict=True)
    ]


def _row(
    sample: Sample,
    completion: tuple[int, ...],
    log_probs: tuple[float, ...] | None,
    target: LoadedTarget,
) -> Completion:
    stopped = completion[-1] in target.facts.eos_token_ids
    return Completion(
        id=sample.id,
        domain=sample.prompt.domain,
        prompt_ids=sample.prompt_ids,
        completion_ids=completion,
        finish="stop" if stopped else "length",
        ids_from="target",
        sample=sample.index,
        log_probs=log_probs,
    )
