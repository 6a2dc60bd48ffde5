"""One pass of the target over each reference completion; the tapped layers' outputs go to a store.

In:   a reference folder, the target that made it, the layers to tap.  Out: a hidden-state store.

Sequences of like length share a pass. They are padded on the right and no mask is given: every
decoder-only target is causal, in attention and in linear attention alike, so what stands to the
right of a token cannot change its state. Layer outputs are taken by hooks, before any final norm;
the `hidden_states` that transformers returns would hold the last layer's output after it.

Shape letters: R sequences of a pass, T padded length, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from draftlab.base.errors import StoreError
from draftlab.base.progress import Track, silent
from draftlab.base.records import (
    Provenance,
    Record,
    json_lines,
    read_json,
    sha256_file,
    sweep,
    whole_file,
    write_atomic,
)
from draftlab.hidden.store import (
    INDEX_NAME,
    PROVENANCE_NAME,
    TAP_MEANING,
    CaptureConditions,
    CaptureProvenance,
    HiddenStore,
    SequenceEntry,
    ShardEntry,
    StoreIndex,
    require_finite,
)
from draftlab.reference.completions import Completion, Reference
from draftlab.target.compute import Compute
from draftlab.target.loading import LoadedTarget, check_head, load_target, next_token_logits

JOB_NAME = "job.json"
JOURNAL_NAME = "journal.jsonl"
SEQUENCES_PER_SHARD = 32
TOKENS_PER_PASS = 4096
_LOGIT_VALUES_AT_ONCE = 1 << 24


class CaptureJob(Record):
    """What a capture does; kept beside the shards until it is finished."""

    conditions: CaptureConditions
    sequences_per_shard: int
    tokens_per_pass: int
    threads: int
    """Kept on resume: the order of additions, and so the last bit, may depend on it."""


class ShardReceipt(Record):
    """One line of the journal: a shard that is whole, and what is in it."""

    shard: ShardEntry
    sequences: tuple[SequenceEntry, ...]


def capture(
    reference: Reference,
    target_folder: Path,
    target_layer_ids: Sequence[int],
    out: Path,
    compute: Compute,
    *,
    track: Track = silent,
) -> HiddenStore:
    """Capture the tapped states of every completion of a reference.

    Safe to stop and run again: whole shards are kept. A finished store of the same job is returned
    as it is.

    Raises:
        StoreError: a layer is out of range, the reference is of another target, or `out` holds
            something else.
        TargetError: the target cannot be loaded.
    """
    target = load_target(target_folder, compute)
    _require_same_target(reference, target)
    job = CaptureJob(
        conditions=_conditions(reference, target, target_layer_ids, compute),
        sequences_per_shard=SEQUENCES_PER_SHARD,
        tokens_per_pass=TOKENS_PER_PASS,
        threads=compute.threads,
    )
    finished = _finished(out, job.conditions)
    if finished is not None:
        return finished
    receipts = _begin(out, job, target_folder)
    groups = _shard_groups(reference.completions, job.sequences_per_shard)
    with torch.inference_mode():
        check_head(target, _first_ids(reference, target))
        for number, group in enumerate(
            track(groups, total=len(groups), what="capture", unit="shards")
        ):
            if number in receipts:
                continue
            receipts[number] = _write_shard(out, number, group, reference, target, job)
            _journal(out, receipts[number])
    return _finish(out, job, [receipts[number] for number in range(len(groups))])


def _conditions(
    reference: Reference, target: LoadedTarget, target_layer_ids: Sequence[int], compute: Compute
) -> CaptureConditions:
    depth = target.facts.num_layers
    absent = [i for i in target_layer_ids if not 0 <= i < depth]
    if absent or not target_layer_ids or list(target_layer_ids) != sorted(set(target_layer_ids)):
        raise StoreError(
            f"layers {list(target_layer_ids)} cannot be tapped: the target has layers 0 to "
            f"{depth - 1}, each at most once, in ascending order.",
            mend="Give --layers as counted from 0, or --drafter to take them from its config.",
        )
    made = reference.record.job
    if made.dtype != compute.dtype:
        raise StoreError(
            f"the reference was decoded in {made.dtype}, this capture would run in "
            f"{compute.dtype}; their texts part within some twenty tokens.",
            mend=f"Pass --dtype {made.dtype}, or make the reference again.",
        )
    return CaptureConditions(
        reference_digest=reference.digest,
        prompts_digest=made.prompts_digest,
        target_fingerprint=target.fingerprint,
        target_architecture=target.facts.architecture,
        num_target_layers=depth,
        hidden_size=target.facts.hidden_size,
        vocab_size=target.facts.vocab_size,
        target_layer_ids=tuple(target_layer_ids),
        tap_meaning=TAP_MEANING,
        dtype=compute.dtype,
        device=compute.device,
        temperature=made.temperature,
        thinking=made.thinking,
        template_digest=made.template_digest,
        max_new_tokens=made.max_new_tokens,
        ignore_eos=made.ignore_eos,
    )


def _require_same_target(reference: Reference, target: LoadedTarget) -> None:
    made = reference.record.job.target_fingerprint
    if made != target.fingerprint:
        raise StoreError(
            f"{reference.folder} was made by the target with fingerprint {made}; --target has "
            f"{target.fingerprint}.",
            mend="Point --target at the target that wrote these completions.",
        )


def _finished(out: Path, conditions: CaptureConditions) -> HiddenStore | None:
    if not (out / INDEX_NAME).is_file():
        return None
    store = HiddenStore.open(out)
    mine, theirs = conditions.model_dump(), store.index.conditions.model_dump()
    _refuse_other(out, mine, theirs)
    return store


def _refuse_other(out: Path, mine: dict[str, object], theirs: dict[str, object]) -> None:
    differing = [key for key in mine if mine[key] != theirs.get(key)]
    if differing:
        raise StoreError(
            f"{out} holds another capture; these differ: {', '.join(differing)}.",
            mend="Give another --out, or delete that folder to start again.",
        )


def _begin(out: Path, job: CaptureJob, target_folder: Path) -> dict[int, ShardReceipt]:
    """Shards that an earlier run of the same job has finished; or a fresh start."""
    out.mkdir(parents=True, exist_ok=True)
    sweep(out)
    if not (out / JOB_NAME).is_file():
        write_atomic(out / JOB_NAME, (job.model_dump_json(indent=1) + "\n").encode())
        made = CaptureProvenance(
            provenance=Provenance.now(), target_folder=str(target_folder.resolve())
        )
        made.save(out / PROVENANCE_NAME)
        return {}
    earlier = CaptureJob.model_validate(read_json(out / JOB_NAME))
    _refuse_other(out, job.conditions.model_dump(), earlier.conditions.model_dump())
    torch.set_num_threads(earlier.threads)
    receipts = {}
    for line in _whole_lines(out / JOURNAL_NAME):
        receipt = ShardReceipt.model_validate_json(line)
        path = out / receipt.shard.file
        if path.is_file() and path.stat().st_size == receipt.shard.num_bytes:
            receipts[receipt.sequences[0].shard] = receipt
    return receipts


def _whole_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return json_lines(path.read_text(encoding="utf-8", errors="replace"))[:-1]


def _journal(out: Path, receipt: ShardReceipt) -> None:
    lines = [*_whole_lines(out / JOURNAL_NAME), receipt.model_dump_json()]
    write_atomic(out / JOURNAL_NAME, "".join(line + "\n" for line in lines).encode())


def _finish(out: Path, job: CaptureJob, receipts: Sequence[ShardReceipt]) -> HiddenStore:
    index = StoreIndex(
        conditions=job.conditions,
        shards=tuple(receipt.shard for receipt in receipts),
        sequences=tuple(entry for receipt in receipts for entry in receipt.sequences),
    )
    index.save(out / INDEX_NAME)
    for name in (JOB_NAME, JOURNAL_NAME):
        (out / name).unlink(missing_ok=True)
    return HiddenStore.open(out)


def _shard_groups(completions: Sequence[Completion], size: int) -> list[list[int]]:
    """Sequence numbers per shard, in order; a completion of one token has nothing to draft."""
    short = [c.id for c in completions if len(c.completion_ids) < 2]
    if short:
        raise StoreError(
            f"{len(short)} completions have fewer than 2 tokens ({short[0]!r} first): "
            "nothing to draft.",
            mend="Leave these prompts out of the reference.",
        )
    numbers = list(range(len(completions)))
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def _first_ids(reference: Reference, target: LoadedTarget) -> Tensor:
    first = reference.completions[0]
    ids = (first.prompt_ids + first.completion_ids)[:8]
    return torch.tensor([ids], device=target.model.device)


def _write_shard(
    out: Path,
    number: int,
    group: Sequence[int],
    reference: Reference,
    target: LoadedTarget,
    job: CaptureJob,
) -> ShardReceipt:
    tensors: dict[str, Tensor] = {}
    entries: dict[int, SequenceEntry] = {}
    lengths = {i: _length(reference.completions[i]) for i in group}
    for batch in _passes(group, lengths, job.tokens_per_pass):
        rows = [reference.completions[i] for i in batch]
        for i, row, found in zip(
            batch, rows, _run(target, rows, job.conditions.target_layer_ids), strict=True
        ):
            require_finite(found["taps"], row.id, job.conditions.target_layer_ids)
            tensors.update({f"{i}.{name}": tensor.contiguous() for name, tensor in found.items()})
            agreeing = int((found["argmax"] == torch.tensor(row.completion_ids)).sum())
            entries[i] = _entry(row, number, agreeing)
    path = out / f"states-{number:05d}.safetensors"
    with whole_file(path) as beside:
        save_file(dict(sorted(tensors.items())), beside)
    shard = ShardEntry(file=path.name, num_bytes=path.stat().st_size, sha256=sha256_file(path))
    return ShardReceipt(shard=shard, sequences=tuple(entries[i] for i in group))


def _entry(row: Completion, shard: int, agreeing: int) -> SequenceEntry:
    return SequenceEntry(
        id=row.id,
        domain=row.domain,
        shard=shard,
        prompt_tokens=len(row.prompt_ids),
        completion_tokens=len(row.completion_ids),
        finish=row.finish,
        agreeing=agreeing,
    )


def _length(row: Completion) -> int:
    """Positions that a pass reads: all tokens but the last."""
    return len(row.prompt_ids) + len(row.completion_ids) - 1


def _passes(
    group: Sequence[int], lengths: dict[int, int], tokens_per_pass: int
) -> Iterator[list[int]]:
    """Sequences that share a pass: of like length, at most `tokens_per_pass` padded tokens."""
    batch: list[int] = []
    for i in sorted(group, key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens_per_pass:
            yield batch
            batch = []
        batch.append(i)
    yield batch


def _run(
    target: LoadedTarget, rows: Sequence[Completion], target_layer_ids: Sequence[int]
) -> list[dict[str, Tensor]]:
    """One pass over a few completions; what the store keeps of each."""
    width = max(map(_length, rows))
    texts = [(row.prompt_ids + row.completion_ids)[:-1] for row in rows]
    ids_RT = torch.tensor(
        [[*text, *([text[-1]] * (width - len(text)))] for text in texts], device=target.model.device
    )
    with _tapped(target.layers, target_layer_ids) as outputs:
        normed_RTH = target.model.get_decoder()(input_ids=ids_RT, use_cache=False).last_hidden_state
    results = []
    for r, row in enumerate(rows):
        prompt = len(row.prompt_ids)
        taps_SC = torch.cat([outputs[i][r, : _length(row)] for i in target_layer_ids], dim=-1)
        results.append(
            {
                "tokens": torch.tensor(row.prompt_ids + row.completion_ids, dtype=torch.int32),
                "taps": taps_SC.cpu(),
                **_judge(target, normed_RTH[r, prompt - 1 : _length(row)], row.completion_ids),
            }
        )
    return results


def _judge(target: LoadedTarget, normed_nH: Tensor, completion: Sequence[int]) -> dict[str, Tensor]:
    """The target's own view of each completion token, in pieces that bound the logits in memory."""
    argmax, logprobs, margins = [], [], []
    step = max(1, _LOGIT_VALUES_AT_ONCE // target.facts.vocab_size)
    for start in range(0, len(completion), step):
        logits = next_token_logits(target, normed_nH[start : start + step])
        logits = logits[:, : target.facts.vocab_size]
        said = torch.tensor(completion[start : start + step], device=logits.device)
        best_two = logits.topk(2, dim=-1)
        argmax.append(best_two.indices[:, 0].to(torch.int32))
        margins.append(best_two.values[:, 0] - best_two.values[:, 1])
        logprobs.append(logits.gather(1, said[:, None])[:, 0] - logits.logsumexp(dim=-1))
    return {
        "argmax": torch.cat(argmax).cpu(),
        "logprobs": torch.cat(logprobs).cpu(),
        "margins": torch.cat(margins).cpu(),
    }


@contextmanager
def _tapped(layers: nn.ModuleList, target_layer_ids: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Keep the outputs of these layers while the body runs the model."""
    outputs: dict[int, Tensor] = {}

    def keep(index: int) -> object:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            if isinstance(tensor, Tensor):
                outputs[index] = tensor

        return layers[index].register_forward_hook(hook)

    handles = [keep(index) for index in target_layer_ids]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()  # type: ignore[attr-defined]
