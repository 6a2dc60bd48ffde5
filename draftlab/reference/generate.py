"""Greedy completions by a local target, through transformers.

In:   prompts, a target folder.  Out: a reference folder.

Prompts of one batch are padded on the left and decoded together. The batches are laid out once,
from all prompts, so that a run that was stopped and continued decodes the same batches and ends in
the same bytes. Whether a batched, cached decoding agrees with a plain pass of the target is not
assumed: capture compares every reference token with the target's own argmax and states the share.
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
    PartialRows,
    Reference,
    ReferenceJob,
    Thinking,
    finished,
    write_reference,
)
from draftlab.reference.encode import PromptEncoder
from draftlab.reference.leaving import decode_together
from draftlab.reference.prompts import Prompt, prompts_digest
from draftlab.target.compute import Compute
from draftlab.target.loading import LoadedTarget, load_target, load_tokenizer

DEFAULT_BATCH_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedySettings:
    """How to decode."""

    max_new_tokens: int
    """Tokens per completion at most."""
    ignore_eos: bool = False
    """Go on past end-of-text tokens, so that every completion has the same length."""
    thinking: Thinking = "template"
    batch_size: int = DEFAULT_BATCH_SIZE
    """Prompts decoded together."""

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
    settings: GreedySettings,
    compute: Compute,
    *,
    track: Track = silent,
) -> Reference:
    """Complete every prompt greedily and write a reference folder.

    Safe to stop and run again: finished batches are not decoded twice. A finished reference of the
    same job is returned as it is.

    Raises:
        CompletionsError: a prompt cannot be rendered, or `out` holds another reference.
        TargetError: the target cannot be loaded.
    """
    target = load_target(target_folder, compute)
    encoder = PromptEncoder(target_folder, settings.thinking, _TransformersTokenizer)
    encoded = [encoder.encode(prompt, target.facts.vocab_size) for prompt in prompts]
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
        temperature=0.0,
        thinking=settings.thinking,
        template_digest=encoder.template_digest,
        keep_cut_off=True,
    )
    done = finished(out, job)
    if done is not None:
        return done
    partial = PartialRows(out, sha256_json(job.model_dump(mode="json")), Completion)
    rows = {row.id: row for row in partial.start()}
    stops = () if settings.ignore_eos else target.facts.eos_token_ids
    batches = _batches(encoded, settings.batch_size)
    for batch in track(batches, total=len(batches), what="reference", unit="batches"):
        if all(prompts[i].key in rows for i in batch):
            continue
        texts = decode_together(target, [encoded[i] for i in batch], settings.max_new_tokens, stops)
        fresh = [
            _row(prompts[i], encoded[i], ids, target) for i, ids in zip(batch, texts, strict=True)
        ]
        partial.append(fresh)
        rows.update({row.id: row for row in fresh})
    kept = [rows[prompt.key] for prompt in prompts]
    reference = write_reference(out, job, kept, None, Provenance.now())
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

    def render(self, messages: Sequence[dict[str, str]], switch: Mapping[str, bool]) -> str:
        """A conversation as the text that opens the next answer."""
        return str(
            self._loaded.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **switch
            )
        )


def _batches(encoded: Sequence[tuple[int, ...]], size: int) -> list[list[int]]:
    """Prompt numbers in batches of like length, longest first (the memory peak comes at once)."""
    order = sorted(range(len(encoded)), key=lambda i: (-len(encoded[i]), i))
    return [order[start : start + size] for start in range(0, len(order), size)]


def _row(
    prompt: Prompt, prompt_ids: tuple[int, ...], completion: tuple[int, ...], target: LoadedTarget
) -> Completion:
    stopped = completion[-1] in target.facts.eos_token_ids
    return Completion(
        id=prompt.key,
        domain=prompt.domain,
        prompt_ids=prompt_ids,
        completion_ids=completion,
        finish="stop" if stopped else "length",
        ids_from="target",
    )
