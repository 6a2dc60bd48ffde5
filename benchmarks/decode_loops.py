"""The other side of benchmarks/evaluate.py: decoding with the real target, one round at a time.

The chain is z-lab's own program (PyPI `dflash`). The trees are a plain, faithful DDTree loop around
z-lab's drafter: Python heap, one target pass over all nodes with a tree mask, accepted keys and
values gathered to the front of the cache (arXiv:2604.12989, section 4). Both keep caches.
"""

from __future__ import annotations

import heapq
import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from transformers import DynamicCache


def load_zlab_drafter(folder: Path):
    """z-lab's own module, in float32."""
    return (
        importlib.import_module("dflash.model")
        .DFlashDraftModel.from_pretrained(folder, dtype=torch.float32)
        .eval()
    )


@torch.inference_mode()
def chain_loop(drafter, target, prompt: Sequence[int], tokens: int) -> list[int]:
    """Committed tokens per round of z-lab's loop; its clock wants CUDA, which is not needed."""
    with mock.patch.object(torch.cuda, "synchronize", return_value=None), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        run = importlib.import_module("dflash.model").dflash_generate(
            drafter,
            target=target,
            input_ids=torch.tensor([list(prompt)]),
            max_new_tokens=tokens,
            stop_token_ids=None,
            return_stats=True,
        )
    return list(run.acceptance_lengths)


@torch.inference_mode()
def tree_loop(drafter, target, prompt: Sequence[int], tokens: int, budget: int) -> list[int]:
    """Committed tokens per round of a DDTree loop with `budget` nodes below the root."""
    cache, draft_cache = DynamicCache(), DynamicCache()
    out = target(
        torch.tensor([list(prompt)]),
        past_key_values=cache,
        use_cache=True,
        output_hidden_states=True,
    )
    features = _features(out.hidden_states, drafter.target_layer_ids)
    token, start, committed = int(out.logits[0, -1].argmax()), len(prompt), []
    end = len(prompt) + tokens
    while start < end - 1:
        logits = _draft(drafter, target, features, token, start, draft_cache)
        nodes, parents = _build(logits, budget)
        out = _verify(target, [token, *nodes], parents, start, cache)
        path = _walk([token, *nodes], parents, out.logits[0].argmax(-1).tolist())
        features = _features(out.hidden_states, drafter.target_layer_ids)[:, path]
        _keep(cache, start, path)
        token = int(out.logits[0, path[-1]].argmax())
        committed.append(min(len(path), end - 1 - start))
        start += len(path)
    return committed


def _features(hidden_states, layer_ids: Sequence[int]) -> Tensor:
    return torch.cat([hidden_states[i + 1] for i in layer_ids], dim=-1)


def _draft(drafter, target, features, token: int, start: int, cache: DynamicCache) -> Tensor:
    block = torch.full((1, drafter.block_size), drafter.mask_token_id)
    block[0, 0] = token
    hidden = drafter(
        target_hidden=features,
        noise_embedding=target.get_input_embeddings()(block),
        position_ids=torch.arange(start - features.shape[1], start + drafter.block_size)[None],
        past_key_values=cache,
        use_cache=True,
    )
    cache.crop(-drafter.block_size)
    return drafter.compute_logits(hidden[:, 1:], target.get_output_embeddings())[0].float()


def _build(logits_DV: Tensor, budget: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of the best-first tree; parent 0 is the root, nodes count from 1."""
    width = min(budget, logits_DV.shape[1])
    top = logits_DV.topk(width, dim=-1)
    scores = (top.values - logits_DV.logsumexp(-1, keepdim=True)).tolist()
    ids = top.indices.tolist()
    heap = [(-scores[0][0], (0,), 0, 1, 0, scores[0][0])]
    tokens: list[int] = []
    parents: list[int] = []
    while heap and len(tokens) < budget:
        _, ranks, parent, depth, rank, weight = heapq.heappop(heap)
        tokens.append(ids[depth - 1][rank])
        parents.append(parent)
        if rank + 1 < width:
            next_weight = weight - scores[depth - 1][rank] + scores[depth - 1][rank + 1]
            heapq.heappush(
                heap, (-next_weight, (*ranks[:-1], rank + 1), parent, depth, rank + 1, next_weight)
            )
        if depth < len(scores):
            child = weight + scores[depth][0]
            heapq.heappush(heap, (-child, (*ranks, 0), len(tokens), depth + 1, 0, child))
    return tokens, parents


def _verify(target, tokens: list[int], parents: list[int], start: int, cache: DynamicCache):
    """One target pass over root and nodes; each sees the past, its ancestors and itself."""
    count = len(tokens)
    seen = torch.zeros(count, count, dtype=torch.bool)
    seen[0, 0] = True
    depths = [0] * count
    for node, parent in enumerate(parents, start=1):
        seen[node] = seen[parent]
        seen[node, node] = True
        depths[node] = depths[parent] + 1
    mask = torch.zeros(1, 1, count, start + count)
    mask[0, 0, :, start:].masked_fill_(~seen, torch.finfo(torch.float32).min)
    return target(
        torch.tensor([tokens]),
        attention_mask=mask,
        position_ids=torch.tensor([[start + depth for depth in depths]]),
        past_key_values=cache,
        use_cache=True,
        output_hidden_states=True,
    )


def _walk(tokens: list[int], parents: list[int], posterior: list[int]) -> list[int]:
    """Nodes that the target agrees with, the root first."""
    children: dict[tuple[int, int], int] = {}
    for node, parent in enumerate(parents, start=1):
        children[parent, tokens[node]] = node
    path = [0]
    while (path[-1], posterior[path[-1]]) in children:
        path.append(children[path[-1], posterior[path[-1]]])
    return path


def _keep(cache: DynamicCache, start: int, path: list[int]) -> None:
    """Gather the accepted rows behind the past and drop the rest."""
    rows = torch.cat([torch.arange(start), start + torch.tensor(path)])
    for layer in cache.layers:
        layer.keys = layer.keys.index_select(2, rows)
        layer.values = layer.values.index_select(2, rows)
