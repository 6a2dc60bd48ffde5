"""Greedy completions by a local target, through transformers.

In:   prompts, a target folder.  Out: a reference folder.

Prompts of one batch are padded on the left and decoded together. The batches are laid out once,
from all prompts, so that a run that was stopped and continued decodes the same batches and ends in
the same bytes. Whether a batched, cached decoding agrees with a plain pass of the target is not
assumed: capture compares every reference token with the target's own argmax and states the share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from draftlab.base.errors import CompletionsError
from draftlab.base.progress import Track, silent
from draftlab.base.records import Provenance, sha256_file, sha256_json, write_atomic
from draftlab.reference.completions import (
    RECORD_NAME,
    ROWS_NAME,
    Completion,
    PartialRows,
    Reference,
    ReferenceJob,
    ReferenceRecord,
    Thinking,
    row_text,
)
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
    encoder = PromptEncoder(target_folder, settings.thinking)
    encoded = [encoder.encode(prompt, target.facts.vocab_size) for prompt in prompts]
    job = ReferenceJob(
        prompts_digest=prompts_digest(prompts),
        num_prompts=len(prompts),
        target_fingerprint=target.fingerprint,
        target_architecture=target.facts.architecture,
        max_new_tokens=settings.max_new_tokens,
        ignore_eos=settings.ignore_eos,
        temperature=0.0,
        thinking=settings.thinking,
        template_digest=encoder.template_digest,
        device=compute.device,
        dtype=compute.dtype,
        batch_size=settings.batch_size,
    )
    done = _finished(out, job)
    if done is not None:
        return done
    partial = PartialRows(out, sha256_json(job.model_dump(mode="json")))
    rows = partial.start()
    batches = _batches(encoded, settings.batch_size)
    for batch in track(batches, total=len(batches), what="reference", unit="batches"):
        if all(prompts[i].key in rows for i in batch):
            continue
        texts = _complete(target, [encoded[i] for i in batch], settings)
        fresh = [
            _row(prompts[i], encoded[i], ids, target) for i, ids in zip(batch, texts, strict=True)
        ]
        partial.append(fresh)
        rows.update({row.id: row for row in fresh})
    reference = _finish(out, job, [rows[prompt.key] for prompt in prompts])
    partial.drop()
    return reference


class PromptEncoder:
    """Turns prompts into token ids with the target's tokenizer; loads it when first needed."""

    def __init__(self, target_folder: Path, thinking: Thinking) -> None:
        self._folder = target_folder
        self._thinking = thinking
        self._loaded: PreTrainedTokenizerBase | None = None
        self.template_digest = ""

    def encode(self, prompt: Prompt, vocab_size: int) -> tuple[int, ...]:
        """Token ids of one prompt.

        Raises:
            CompletionsError: the prompt renders to nothing, or an id is outside the vocabulary.
        """
        if prompt.input_ids is not None:
            ids = prompt.input_ids
        elif prompt.prompt is not None:
            ids = tuple(self._tokenizer()(prompt.prompt)["input_ids"])
        else:
            ids = self._render(prompt)
        if not ids:
            raise CompletionsError(
                f"prompt {prompt.key!r} has no tokens.", mend="Give it some text."
            )
        if max(ids) >= vocab_size:
            raise CompletionsError(
                f"prompt {prompt.key!r} has token id {max(ids)}; the target's ids end at "
                f"{vocab_size - 1}.",
                mend="Were these input_ids made with another tokenizer?",
            )
        return ids

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self._loaded is None:
            self._loaded = load_tokenizer(self._folder)
        return self._loaded

    def _render(self, prompt: Prompt) -> tuple[int, ...]:
        tokenizer = self._tokenizer()
        template = tokenizer.chat_template
        if not template:
            raise CompletionsError(
                f"prompt {prompt.key!r} is a chat and {self._folder} has no chat template.",
                mend='Give {"prompt": ...} lines for a base model.',
            )
        if self._thinking != "template" and "enable_thinking" not in str(template):
            raise CompletionsError(
                f"thinking {self._thinking!r} was asked for; this chat template has no such "
                "switch.",
                mend="Leave --thinking out.",
            )
        self.template_digest = hashlib.sha256(str(template).encode()).hexdigest()
        switch: dict[str, Any] = {}
        if self._thinking != "template":
            switch["enable_thinking"] = self._thinking == "on"
        text = tokenizer.apply_chat_template(
            [message.model_dump() for message in prompt.messages or ()],
            tokenize=False,
            add_generation_prompt=True,
            **switch,
        )
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _batches(encoded: Sequence[tuple[int, ...]], size: int) -> list[list[int]]:
    """Prompt numbers in batches of like length, longest first (the memory peak comes at once)."""
    order = sorted(range(len(encoded)), key=lambda i: (-len(encoded[i]), i))
    return [order[start : start + size] for start in range(0, len(order), size)]


@torch.inference_mode()
def _complete(
    target: LoadedTarget, batch: Sequence[tuple[int, ...]], settings: GreedySettings
) -> list[tuple[int, ...]]:
    """Greedy completions of prompts decoded together."""
    device = target.model.device
    width = max(map(len, batch))
    pad = target.facts.pad_token_id or 0
    ids_RT = torch.tensor([[pad] * (width - len(row)) + list(row) for row in batch], device=device)
    mask_RT = torch.tensor(
        [[0] * (width - len(row)) + [1] * len(row) for row in batch], device=device
    )
    stops = [] if settings.ignore_eos else list(target.facts.eos_token_ids)
    untyped: Any = GenerationConfig
    config = untyped(
        do_sample=False,
        max_new_tokens=settings.max_new_tokens,
        eos_token_id=stops or None,
        pad_token_id=pad,
    )
    out = target.model.generate(input_ids=ids_RT, attention_mask=mask_RT, generation_config=config)
    return [_cut_after_stop(row[width:].tolist(), stops) for row in out]


def _cut_after_stop(ids: list[int], stops: Sequence[int]) -> tuple[int, ...]:
    """The tokens up to and with the first stop token."""
    for index, token in enumerate(ids):
        if token in stops:
            return tuple(ids[: index + 1])
    return tuple(ids)


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
    )


def _finished(out: Path, job: ReferenceJob) -> Reference | None:
    """The reference in `out` if it is whole and of this job; None if there is none yet."""
    if not (out / RECORD_NAME).is_file():
        return None
    found = Reference.open(out)
    mine, theirs = job.model_dump(), found.record.job.model_dump()
    differing = [key for key in mine if mine[key] != theirs[key]]
    if differing:
        raise CompletionsError(
            f"{out} holds another reference; these differ: {', '.join(differing)}.",
            mend="Give another --out.",
        )
    return found


def _finish(out: Path, job: ReferenceJob, rows: Sequence[Completion]) -> Reference:
    write_atomic(out / ROWS_NAME, "".join(map(row_text, rows)).encode())
    record = ReferenceRecord(
        job=job,
        completions_sha256=sha256_file(out / ROWS_NAME),
        num_tokens=sum(len(row.completion_ids) for row in rows),
        num_cut_off=sum(row.finish == "length" for row in rows),
        provenance=Provenance.now(),
    )
    record.save(out / RECORD_NAME)
    return Reference(out, record, rows)
