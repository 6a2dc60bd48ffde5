"""Evaluate one drafter on one store.

Draft every anchor once, walk every question, write the record.

In:   a store, a drafter, the target's folder (its config, embedding and head only).
Out:  EvaluationRun, and on request run.json with the drafts of every anchor and the texts beside
      it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from draftlab.base.errors import DrafterError, DraftlabError
from draftlab.base.progress import Track, silent
from draftlab.base.records import Provenance, sha256_file, whole_file
from draftlab.drafter.checkpoint import LoadedDrafter, load_drafter
from draftlab.hidden.store import HiddenStore
from draftlab.replay.draft import MAX_BUDGET, AnchorDrafts, draft_anchors
from draftlab.replay.result import (
    FEW_ROUNDS,
    Conditions,
    CoverageRecord,
    DomainResult,
    EvaluationRun,
    WalkCounts,
    WalkTotals,
    summary,
    totals,
)
from draftlab.replay.texts import SequenceTokens, run_texts
from draftlab.replay.walks import (
    Counts,
    all_anchor,
    chain_accepted,
    gather,
    slot_rates,
    streak_accepted,
    tree_accepted,
    tree_rounds_by_budget,
    walks_of,
)
from draftlab.target.compute import Compute

DEFAULT_BUDGETS = (16, 32, 64, 128, 256, 512, 1024)
STREAKS = (1, 2, 4, 8, 16, 32)
ROUNDS_SUFFIX = ".rounds.safetensors"
TEXTS_SUFFIX = ".texts.json"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A run with the drafts that it counts and the tokens that they were drafted for."""

    run: EvaluationRun
    drafts: tuple[AnchorDrafts, ...]
    tokens: tuple[SequenceTokens, ...]


def evaluate(  # noqa: PLR0913  # the last three are keyword-only options with defaults
    store: HiddenStore,
    drafter_folder: Path,
    target_folder: Path,
    compute: Compute,
    *,
    budgets: Sequence[int] = DEFAULT_BUDGETS,
    block_size: int | None = None,
    track: Track = silent,
) -> Evaluation:
    """Replay every completion of a store through a drafter.

    Args:
        store: hidden states over greedy completions.
        drafter_folder: a DFlash drafter.
        target_folder: its target; no layer of it is loaded.
        compute: must have the number type of the store.
        budgets: tree budgets whose rounds are listed, 1..1024; τ is given for all of 1..1024.
        block_size: run the drafter at another block size.
        track: shows progress.

    Raises:
        DraftlabError: the parts do not belong together, or a budget is out of range.
    """
    _check_budgets(budgets)
    compute.apply()
    loaded = load_drafter(
        drafter_folder,
        target_folder,
        dtype=compute.torch_dtype,
        device=compute.torch_device,
        block_size=block_size,
    )
    require_same_states(store, loaded, compute)
    numbers = track(range(len(store)), total=len(store), what="evaluate", unit="completions")
    drafts, tokens = [], []
    for number in numbers:
        sequence = store.read(number)
        drafts.append(draft_anchors(loaded, sequence))
        tokens.append(SequenceTokens.of(sequence))
    run = _run(store, drafts, loaded, drafter_folder.resolve().name, compute, budgets)
    return Evaluation(run, tuple(drafts), tuple(tokens))


def require_same_states(store: HiddenStore, loaded: LoadedDrafter, compute: Compute) -> None:
    """Check that a store holds the states that this drafter reads.

    Raises:
        DrafterError: other taps, another target, another number type, or sampled text.
    """
    conditions = store.index.conditions
    taps = loaded.drafter.config.target_layer_ids
    if conditions.target_fingerprint != loaded.target_fingerprint:
        raise DrafterError(
            f"the store was captured from a target with fingerprint "
            f"{conditions.target_fingerprint}; --target has {loaded.target_fingerprint}.",
            mend="Point --target at the target of the store.",
        )
    if conditions.target_layer_ids != taps:
        raise DrafterError(
            f"the drafter reads layers {list(taps)}; the store holds "
            f"{list(conditions.target_layer_ids)}.",
            mend="Capture again with --drafter pointing at this drafter.",
        )
    if conditions.dtype != compute.dtype:
        raise DrafterError(
            f"the store's states are {conditions.dtype}; this run would draft in {compute.dtype}.",
            mend=f"Pass --dtype {conditions.dtype}, or capture again.",
        )
    if conditions.temperature != 0:
        raise DrafterError(
            f"the completions were sampled at temperature {conditions.temperature:g}; replay is "
            "exact for greedy text.",
            mend="Make a greedy reference.",
        )


def write_run(evaluation: Evaluation, path: Path, tokenizer: Any = None) -> EvaluationRun:
    """Write run.json, and beside it the drafts of every anchor and the texts; each whole or not.

    Args:
        evaluation: what to write.
        path: of run.json; the files beside it take its name.
        tokenizer: the target's, so that the texts can be read; without one they stay token ids.
    """
    rounds_path = path.with_name(path.stem + ROUNDS_SUFFIX)
    with whole_file(rounds_path) as part:
        save_file(_columns(evaluation.drafts), part)
    texts_path = path.with_name(path.stem + TEXTS_SUFFIX)
    run_texts(evaluation.tokens, evaluation.drafts, tokenizer).save(texts_path)
    run = evaluation.run.model_copy(
        update={
            "rounds_file": rounds_path.name,
            "rounds_sha256": sha256_file(rounds_path),
            "texts_file": texts_path.name,
            "texts_sha256": sha256_file(texts_path),
        }
    )
    run.save(path)
    return run


def _columns(drafts: Sequence[AnchorDrafts]) -> dict[str, npt.NDArray[Any]]:
    """All anchors of all completions below each other, and how many each completion has."""
    names = (
        "drafted_AD",
        "path_token_ranks_AD",
        "path_log_probs_AD",
        "best_log_probs_AD",
        "path_ranks_AD",
    )
    columns = {
        name.removesuffix("_AD"): np.ascontiguousarray(
            np.concatenate([getattr(d, name) for d in drafts])
        )
        for name in names
    }
    columns["anchors"] = np.array([d.num_anchors for d in drafts], dtype=np.int64)
    return columns


def _check_budgets(budgets: Sequence[int]) -> None:
    amiss = [b for b in budgets if not 1 <= b <= MAX_BUDGET]
    if amiss:
        raise DraftlabError(
            f"budget {amiss[0]} is out of range.", mend=f"Budgets are 1 to {MAX_BUDGET} nodes."
        )


def _run(
    store: HiddenStore,
    drafts: Sequence[AnchorDrafts],
    loaded: LoadedDrafter,
    name: str,
    compute: Compute,
    budgets: Sequence[int],
) -> EvaluationRun:
    index, block = store.index, loaded.drafter.config.block_size
    chain_runs = [chain_accepted(d) for d in drafts]
    chain_walks = walks_of(chain_runs)
    chain = gather(chain_walks)
    trees = {str(b): gather(walks_of([tree_accepted(d, b) for d in drafts])) for b in budgets}
    widths = range(2, block + 1)
    rounds_by_budget = tree_rounds_by_budget(drafts).sum(axis=0)
    tokens = sum(d.num_anchors for d in drafts)
    domains = [entry.domain for entry in index.sequences]
    coverage = loaded.coverage
    return EvaluationRun(
        drafter=name,
        drafter_fingerprint=loaded.fingerprint,
        coverage=CoverageRecord(used=coverage.used, total=coverage.total, stored_as=coverage.dtype),
        conditions=_conditions(store, block, tuple(widths), tuple(budgets), compute),
        agreement=index.agreement,
        chain=chain,
        trees=trees,
        tree_tau_by_budget=tuple((tokens / rounds_by_budget).tolist()),
        widths={str(w): _totals_of([np.minimum(run, w - 1) for run in chain_runs]) for w in widths},
        streaks={str(k): _totals_of([streak_accepted(d, k) for d in drafts]) for k in STREAKS},
        all_anchor=all_anchor(chain_runs, drafts),
        slots=slot_rates(drafts, chain_walks),
        histogram=_histogram(chain, block),
        domains=_domains(domains, chain, trees),
        prompt_ids=tuple(entry.id for entry in index.sequences),
        prompt_domains=tuple(domains),
        notes=(*loaded.notes, *_notes_of(store)),
        rounds_file="",
        rounds_sha256="",
        texts_file="",
        texts_sha256="",
        provenance=Provenance.now(),
    )


def _notes_of(store: HiddenStore) -> Iterator[str]:
    """What limits the numbers, of the texts rather than of the drafter."""
    if store.index.conditions.ids_from == "given":
        yield (
            f"the texts were given: the target itself would say {store.index.agreement:.1%} of "
            "their tokens, and this is τ along them, not of a server that decodes"
        )


def _totals_of(accepted: Sequence[Counts]) -> WalkTotals:
    return totals(gather(walks_of(accepted)))


def _histogram(chain: WalkCounts, block: int) -> dict[str, int]:
    counts = Counter(tokens for rounds in chain.committed for tokens in rounds)
    return {str(tokens): counts[tokens] for tokens in range(1, block + 1)}


def _domains(
    domains: Sequence[str], chain: WalkCounts, trees: Mapping[str, WalkCounts]
) -> dict[str, DomainResult]:
    results = {}
    for domain in _in_order(domains):
        members = [i for i, name in enumerate(domains) if name == domain]
        own = chain.of(members)
        results[domain] = DomainResult(
            prompts=len(members),
            chain=summary(own),
            trees={budget: summary(counts.of(members)) for budget, counts in trees.items()},
            too_few=own.rounds < FEW_ROUNDS,
        )
    return results


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _conditions(
    store: HiddenStore,
    block: int,
    widths: tuple[int, ...],
    budgets: tuple[int, ...],
    compute: Compute,
) -> Conditions:
    made = store.index.conditions
    return Conditions(
        prompts=len(store),
        completion_tokens=store.index.num_tokens,
        prompts_digest=made.prompts_digest,
        reference_digest=made.reference_digest,
        store_digest=store.digest,
        target_architecture=made.target_architecture,
        target_fingerprint=made.target_fingerprint,
        thinking=made.thinking,
        template_digest=made.template_digest,
        temperature=made.temperature,
        max_new_tokens=made.max_new_tokens,
        ignore_eos=made.ignore_eos,
        block_size=block,
        drafted_per_round=block - 1,
        widths=widths,
        budgets=budgets,
        computed_on=str(compute),
    )
