"""Rank the reference under all budgets 1..1024: our kernel against one 1024-node heap per anchor.

Both sides run in one process on the same tables, in turn, several times; medians are compared.
The heap is the loop of liranringel/ddtree@c96427a, build_ddtree_tree, without its torch.topk and
its attention mask; such a tree answers one budget. Its ranks are compared with the kernel's for
every anchor before anything is timed.

Tables:
    peaked     like a DFlash drafter: best token .9 in slot 1 falling to .3 in slot 15 on average,
               scattered, with a heavy tail; the reference is drawn from the table
    confident  the same with .99 falling to .9: long paths, neighbouring prefixes of equal rank
    flat       normal logits in all slots; the reference starts among the 20 best tokens
    detour     near-certain slots after a reference token of rank 60 in an undecided first one:
               every prefix of the path has a large rank

Run:  python benchmarks/tree_ranks.py [--anchors 200] [--rounds 7] [--threads 1 2]
"""

import argparse
import functools
import heapq
import os
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from draftlab.tree.jit import COMPILES
from draftlab.tree.ranks import rank_reference_paths

# Shape letters: N anchors, D slots, K best tokens per slot, V vocabulary.
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

Entry = tuple[float, tuple[int, ...], int, int, int, float]

DEPTH, CANDIDATES, BUDGET = 15, 1024, 1024
TARGET = 50.0


class Tables(NamedTuple):
    """Inputs of the kernel for N anchors."""

    top_log_probs_NDK: Floats
    path_log_probs_ND: Floats
    path_token_ranks_ND: Integers
    vocab_size: int


def slot_chances(kind: str, slot: int, vocab_size: int, random: np.random.Generator) -> Floats:
    """Probabilities [V] of one slot, largest first."""
    if kind == "flat" or (kind == "detour" and slot == 0):
        weights_V = np.exp(random.normal(0, 1 if kind == "flat" else 0.01, vocab_size))
        return np.sort(weights_V / weights_V.sum())[::-1]
    first, final, spread = {
        "peaked": (0.9, 0.3, 5), "confident": (0.99, 0.9, 5), "detour": (0.999, 0.999, 50),
    }[kind]  # fmt: skip
    mean = first + (final - first) * slot / (DEPTH - 1)
    best = float(np.clip(random.beta(spread * mean, spread * (1 - mean)), 1e-3, 1 - 1e-6))
    tail_V = np.arange(1.0, vocab_size) ** -random.uniform(1, 2)
    tail_V = np.sort(tail_V * np.exp(random.normal(0, 0.5, vocab_size - 1)))[::-1]
    return np.sort(np.append(tail_V * (1 - best) / tail_V.sum(), best))[::-1]


def make_tables(kind: str, vocab_size: int, anchors: int) -> Tables:
    """Tables of one kind, the same at every run."""
    random = np.random.default_rng([vocab_size, *kind.encode()])
    top_NDK = np.empty((anchors, DEPTH, min(CANDIDATES, vocab_size)), np.float32)
    path_ND, token_ranks_ND = (
        np.empty((anchors, DEPTH), np.float32),
        np.empty((anchors, DEPTH), int),
    )
    for n in range(anchors):
        for d in range(DEPTH):
            chances_V = slot_chances(kind, d, vocab_size, random)
            rank = min(int(np.searchsorted(chances_V.cumsum(), random.random())), vocab_size - 1)
            if kind in ("flat", "detour"):
                rank = (int(random.integers(20)) if kind == "flat" else 60) if d == 0 else 0
            log_probs_V = np.log(chances_V).astype(np.float32)
            top_NDK[n, d] = log_probs_V[: top_NDK.shape[2]]
            path_ND[n, d], token_ranks_ND[n, d] = log_probs_V[rank], rank
    return Tables(top_NDK, path_ND, token_ranks_ND.astype(np.int32), vocab_size)


def heap_tree(top_log_probs_DK: Floats, budget: int) -> list[dict[int, int]]:
    """The tree as the published loop builds it: each node's children, by token rank."""
    depth_limit, width = top_log_probs_DK.shape
    first = float(top_log_probs_DK[0, 0])
    heap: list[Entry] = [(-first, (0,), 0, 1, 0, first)]
    tokens, depths = np.empty(budget, np.int64), np.empty(budget, np.int64)
    parents, children, count = np.empty(budget + 1, np.int32), [dict[int, int]()], 0
    while heap and count < budget:
        _, ranks, parent, depth, rank, score = heapq.heappop(heap)
        tokens[count], depths[count], parents[count + 1] = rank, depth, parent
        count += 1
        children.append({})
        children[parent][rank] = count
        if rank + 1 < width:
            here, after = top_log_probs_DK[depth - 1, rank], top_log_probs_DK[depth - 1, rank + 1]
            sibling = score - float(here) + float(after)
            entry = (-sibling, (*ranks[:-1], rank + 1), parent, depth, rank + 1, sibling)
            heapq.heappush(heap, entry)
        if depth < depth_limit:
            child = score + float(top_log_probs_DK[depth, 0])
            heapq.heappush(heap, (-child, (*ranks, 0), count, depth + 1, 0, child))
    return children


def rank_by_heap(tables: Tables) -> Integers:
    """The ranks [N, D] read off one tree per anchor."""
    ranks_ND = np.full_like(tables.path_token_ranks_ND, BUDGET + 1)
    for n, path_D in enumerate(tables.path_token_ranks_ND.tolist()):
        children, node = heap_tree(tables.top_log_probs_NDK[n], BUDGET), 0
        for d, token_rank in enumerate(path_D):
            node = children[node].get(token_rank, -1)
            if node < 0:
                break
            ranks_ND[n, d] = node
    return ranks_ND


def rank_by_kernel(tables: Tables, threads: int) -> Integers:
    """The same from the kernel."""
    inputs = tables._asdict()
    return rank_reference_paths(**inputs, max_budget=BUDGET, threads=threads).path_ranks_ND


def medians_us(sides: list[Callable[[], Integers]], rounds: int, anchors: int) -> list[float]:
    """Median time per anchor of each side; the sides take turns."""
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for times, side in zip(seconds, sides, strict=True):
            start = time.perf_counter()
            side()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) / anchors * 1e6 for times in seconds]


def main() -> None:
    """Print one line per kind of table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--anchors", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    wish = parser.parse_args()
    print(
        f"{wish.anchors} anchors, {DEPTH} slots, {CANDIDATES} candidates, budgets 1..{BUDGET}; "
        f"median of {wish.rounds} rounds; {os.cpu_count()} hardware threads, load "
        f"{os.getloadavg()[0]:.1f}; kernel {'compiled by numba' if COMPILES else 'interpreted'}"
    )
    print(f"{'table':<10} {'V':>6} {'in tree':>8} {'heap':>9}", end="")
    print("".join(f" {f'{threads} thread(s)':>19}" for threads in wish.threads))
    for kind, vocab_size in [
        ("peaked", 2_000), ("peaked", 50_000), ("confident", 50_000), ("flat", 2_000),
        ("flat", 50_000), ("detour", 50_000),
    ]:  # fmt: skip
        tables = make_tables(kind, vocab_size, wish.anchors)
        sides: list[Callable[[], Integers]] = [functools.partial(rank_by_heap, tables)]
        sides += [functools.partial(rank_by_kernel, tables, threads) for threads in wish.threads]
        expected_ND = rank_by_heap(tables)
        for side in sides[1:]:
            if not (side() == expected_ND).all():
                raise SystemExit(f"{kind}, V = {vocab_size}: the kernel's ranks are not the heap's")
        heap_us, *kernel_us = medians_us(sides, wish.rounds, wish.anchors)
        accepted = (expected_ND <= BUDGET).sum(axis=1).mean()
        print(f"{kind:<10} {vocab_size:>6} {accepted:>8.2f} {heap_us:>6.0f} us", end="")
        print("".join(f" {us:>7.2f} us {heap_us / us:>6.0f} x" for us in kernel_us))
    print(
        f"in tree: drafted tokens that 1024 nodes accept, mean; aim: {TARGET:.0f} x on one thread"
    )


if __name__ == "__main__":
    main()
