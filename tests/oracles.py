"""Slow and obvious re-derivations of what replay must reproduce, element by element.

A drafter computed slot by slot, a target asked without a cache, real speculative decoding loops
around them, and a trainer that makes a drafter good enough to accept. Only the trainer's own
forward is fast, and a test holds it equal to the slow one. Imports nothing of draftlab.

Shapes: A context positions (all before the anchor), B slots of a block, D = B - 1 drafted, H
hidden, N = taps * H, V vocabulary, K candidates of a slot, S positions of a text, P texts,
M anchors of a text, R rows, G heads, E elements of a head.
"""

import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

# ---- the drafter ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a z-lab config.json says about the computation."""

    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    block_size: int
    num_heads: int
    num_key_heads: int
    norm_eps: float
    rope_theta: float
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    embedding_scale: float
    output_multiplier: float
    softcap: float

    def causal(self, layer: int) -> bool:
        """Sliding layers are, unless a top-level is_causal decides for all (z-lab, August 2026)."""
        if self.is_causal is None:
            return self.layer_types[layer] == "sliding_attention"
        return self.is_causal

    def sees(self, layer: int, query: int, key: int) -> bool:
        """Whether the slot at position `query` may look at position `key`, context or block."""
        if self.causal(layer) and key > query:
            return False
        if self.layer_types[layer] == "full_attention":
            return True
        return abs(query - key) < self.sliding_window


def read_rules(config: dict[str, Any]) -> Rules:
    inner = config["dflash_config"]

    def either(name: str, default: Any) -> Any:
        value = inner.get(name, config.get(name))
        return default if value is None else value

    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}
    layers = tuple(config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"])
    sliding = "sliding_attention" in layers
    if rope.get("rope_type", "default") != "default" or config.get("rope_scaling"):
        raise ValueError("the oracle knows plain RoPE only")
    if sliding and not (config["use_sliding_window"] and config["sliding_window"]):
        raise ValueError("a sliding layer without a window in use: readers disagree about it")
    return Rules(
        target_layer_ids=tuple(inner["target_layer_ids"]),
        mask_token_id=inner["mask_token_id"],
        block_size=either("block_size", 16),
        num_heads=config["num_attention_heads"],
        num_key_heads=config["num_key_value_heads"],
        norm_eps=config["rms_norm_eps"],
        rope_theta=rope["rope_theta"],
        layer_types=layers,
        sliding_window=config["sliding_window"] if sliding else None,
        is_causal=config.get("is_causal"),
        embedding_scale=either("input_embedding_scale", 1.0),
        output_multiplier=either("output_multiplier", 1.0),
        softcap=either("final_logit_softcapping", 0.0),
    )


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder, sharded or not, in float32."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: value.float() for file in files for name, value in load_file(file).items()}


def read_tables(target_folder: Path) -> tuple[Tensor, Tensor]:
    """The target's embedding rows and output rows, whatever prefix its text model has."""
    tensors = read_tensors(target_folder)
    [embedding_VH] = [
        value for name, value in tensors.items() if name.endswith("embed_tokens.weight")
    ]
    config = json.loads((target_folder / "config.json").read_text())
    tied = config["tie_word_embeddings"]
    return embedding_VH, embedding_VH if tied else tensors["lm_head.weight"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x_RGE: Tensor, positions_R: Tensor, theta: float) -> Tensor:
    """RoPE: element e turns with element e + E/2, by position * theta^(-2e/E)."""
    half = x_RGE.shape[-1] // 2
    speeds = torch.tensor([theta ** (-e / half) for e in range(half)], dtype=torch.float64)
    angles = positions_R.double()[:, None, None] * speeds
    cos, sin = angles.cos().to(x_RGE), angles.sin().to(x_RGE)
    first, second = x_RGE[..., :half], x_RGE[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class NaiveDrafter:
    """A z-lab drafter over its target's tables: one block at a time, no cache, no batch."""

    def __init__(self, folder: Path, target_folder: Path, *, block_size: int | None = None) -> None:
        self.rules = read_rules(json.loads((folder / "config.json").read_text()))
        self.block_size = block_size or self.rules.block_size
        self.weights = read_tensors(folder)
        self.embedding_VH, self.head_VH = read_tables(target_folder)

    def logits(self, taps_AN: Tensor, anchor_token: int, anchor: int, block_size: int) -> Tensor:
        """Logits [B - 1, V] for the positions after the anchor.

        `taps_AN` holds the tapped layers' outputs at all positions before the anchor; the anchor's
        own are unknown when the block is drafted.
        """
        if taps_AN.shape[0] != anchor:
            raise ValueError(f"{taps_AN.shape[0]} rows of taps for an anchor at {anchor}")
        tokens = [anchor_token] + [self.rules.mask_token_id] * (block_size - 1)
        x_BH = self.embedding_VH[tokens] * self.rules.embedding_scale
        context_AH = self.norm(self.linear(taps_AN, "fc"), "hidden_norm")
        for layer in range(len(self.rules.layer_types)):
            name = f"layers.{layer}."
            block_BH = self.norm(x_BH, name + "input_layernorm")
            x_BH = x_BH + self.attention(layer, context_AH, block_BH)
            x_BH = x_BH + self.mlp(layer, self.norm(x_BH, name + "post_attention_layernorm"))
        return self.output(self.norm(x_BH, "norm")[1:])

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weights[name + ".weight"], self.rules.norm_eps)

    def heads(self, x: Tensor, name: str, num_heads: int) -> Tensor:
        """[..., H] to [..., heads, E] through the projection `name`."""
        return self.linear(x, name).unflatten(-1, (num_heads, -1))

    def attention(self, layer: int, context_AH: Tensor, block_BH: Tensor) -> Tensor:
        rules, name = self.rules, f"layers.{layer}.self_attn."
        anchor, slots = len(context_AH), len(block_BH)
        positions = torch.arange(anchor + slots)
        rows_RH = torch.cat([context_AH, block_BH])
        q = self.norm(self.heads(block_BH, name + "q_proj", rules.num_heads), name + "q_norm")
        k = self.norm(self.heads(rows_RH, name + "k_proj", rules.num_key_heads), name + "k_norm")
        v = self.heads(rows_RH, name + "v_proj", rules.num_key_heads)
        q = rotate(q, positions[anchor:], rules.rope_theta)
        k = rotate(k, positions, rules.rope_theta)
        per_key_head = rules.num_heads // rules.num_key_heads
        mixed = []
        for slot in range(slots):
            seen = [p for p in positions.tolist() if rules.sees(layer, anchor + slot, p)]
            for head in range(rules.num_heads):
                keys, values = k[seen, head // per_key_head], v[seen, head // per_key_head]
                scores = keys @ q[slot, head] / math.sqrt(q.shape[-1])
                mixed.append(scores.softmax(0) @ values)
        return self.linear(torch.cat(mixed).view(slots, -1), name + "o_proj")

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        name = f"layers.{layer}.mlp."
        gate = functional.silu(self.linear(x, name + "gate_proj"))
        return self.linear(gate * self.linear(x, name + "up_proj"), name + "down_proj")

    def output(self, x: Tensor) -> Tensor:
        """The target's head, then z-lab's multiplier and soft cap."""
        logits = x @ self.head_VH.T * self.rules.output_multiplier
        cap = self.rules.softcap
        return torch.tanh(logits / cap) * cap if cap else logits


# ---- the target ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """The target's greedy token after some prefix, and by how much its logit leads."""

    token: int
    margin: float


def choose(logits_V: Tensor) -> Choice:
    best, second = logits_V.topk(2).values.tolist()
    return Choice(int(logits_V.argmax()), best - second)


class Target:
    """The real target; every question is a forward over the whole prefix, never with a cache.

    Answers are kept by prefix, so that loops over the same text share them. `layer_ids` counts
    decoder layers from 0 and means their outputs.
    """

    def __init__(self, folder: Path, layer_ids: Sequence[int]) -> None:
        self.folder = folder
        self.model = tiny.load_target(folder)
        self.layer_ids = tuple(layer_ids)
        num_layers = self.model.config.get_text_config().num_hidden_layers
        if not all(0 <= layer < num_layers - 1 for layer in self.layer_ids):
            raise ValueError(
                "a tap of the last layer means two things: before or after the last norm"
            )
        self.known: dict[tuple[int, ...], tuple[Tensor, Choice]] = {}

    @torch.no_grad()
    def forward(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Taps [S, N] and logits [S, V] of one full forward."""
        ids = torch.tensor([list(tokens)])
        output = self.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        layers = [output.hidden_states[layer + 1][0] for layer in self.layer_ids]
        return torch.cat(layers, dim=-1), output.logits[0]

    def read(self, tokens: Sequence[int]) -> tuple[Tensor, Choice]:
        """The taps of `tokens`, and the choice after the last of them."""
        key = tuple(tokens)
        if key not in self.known:
            taps_SN, logits_SV = self.forward(key)
            self.known[key] = taps_SN, choose(logits_SV[-1])
        return self.known[key]

    def choices(self, tokens: Sequence[int], count: int) -> list[Choice]:
        """The choices after each of the last `count` tokens, from one forward: a verification."""
        return [choose(logits_V) for logits_V in self.forward(tokens)[1][-count:]]


def greedy(target: Target, prompt_ids: Sequence[int], n: int) -> list[int]:
    """The completion, token by token."""
    tokens = list(prompt_ids)
    for _ in range(n):
        tokens.append(target.read(tokens)[1].token)
    return tokens[len(prompt_ids) :]


# ---- speculative decoding ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of speculative decoding."""

    anchor: int
    """Position of the anchor, the prompt's first token being 0."""
    drafted: tuple[int, ...]
    """Drafted tokens: slot by slot for a chain, in pop order for a tree."""
    parents: tuple[int, ...]
    """Per drafted token: the drafted token it follows, counted from 1; 0 is the anchor."""
    accepted: int
    """Drafted tokens that matched, no more than the completion had left."""
    committed: int
    """accepted + 1, or what was left."""
    cut: bool
    """The completion ended before the token that follows the accepted ones."""
    target_margins: tuple[float, ...]
    """Lead of each choice of the target that this round rests on."""
    draft_margins: tuple[float, ...]
    """Chain: lead of each draft up to the refused one. Tree: gap to the first node left out."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A completion and its rounds. The first token is the prefill's and in no round."""

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]

    @property
    def accepted(self) -> list[int]:
        return [one.accepted for one in self.rounds]

    @property
    def committed(self) -> list[int]:
        return [one.committed for one in self.rounds]

    @property
    def smallest_margin(self) -> float:
        """The nearest that any decision came to a tie."""
        margins = (m for one in self.rounds for m in one.target_margins + one.draft_margins)
        return min(margins, default=math.inf)


@dataclass(frozen=True, slots=True)
class Tree:
    """Draft nodes in pop order. Node 0 is the root, the anchor; `tokens[i]` is node i + 1's."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    log_probs: tuple[float, ...]
    gap: float
    """Log-prob of the last node less that of the first one left out; inf where nothing was."""

    def children(self, node: int) -> dict[int, int]:
        """Token to node, below `node`."""
        return {
            token: child
            for child, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True), 1)
            if parent == node
        }


def best_first_tree(logits_DV: Tensor, budget: int, width: int | None = None) -> Tree:
    """DDTree's tree: pop the most probable prefix, push its next sibling and its first child.

    Log-probs are float32 over the full vocabulary, their sums are Python floats; among equal sums
    the smaller tuple of ranks goes first. Equal logits rank by token id, which torch.topk, and so
    the original, leaves open. `width` keeps only so many candidates at each depth; 1 makes a chain.

    Source: arXiv:2604.12989; liranringel/ddtree@c96427a, build_ddtree_tree.
    """
    logits_DV = logits_DV.float()
    order = torch.sort(logits_DV, dim=-1, descending=True, stable=True)
    log_probs_DV = order.values - torch.logsumexp(logits_DV, dim=-1, keepdim=True)
    tokens_DK = order.indices[:, : min(budget, width or budget)].tolist()
    log_probs_DK = log_probs_DV[:, : min(budget, width or budget)].tolist()
    depths, candidates = len(tokens_DK), len(tokens_DK[0])
    heap = [(-log_probs_DK[0][0], (0,), 0)]
    tokens, parents, scores = [], [], []
    while heap and len(tokens) < budget:
        cost, ranks, parent = heapq.heappop(heap)
        depth, rank = len(ranks) - 1, ranks[-1]
        tokens.append(tokens_DK[depth][rank])
        parents.append(parent)
        scores.append(-cost)
        if rank + 1 < candidates:
            fall = log_probs_DK[depth][rank] - log_probs_DK[depth][rank + 1]
            heapq.heappush(heap, (cost + fall, (*ranks[:-1], rank + 1), parent))
        if depth + 1 < depths:
            child = cost - log_probs_DK[depth + 1][0]
            heapq.heappush(heap, (child, (*ranks, 0), len(tokens)))
    gap = scores[-1] + heap[0][0] if heap else math.inf
    return Tree(tuple(tokens), tuple(parents), tuple(scores), gap)


def draft(target: Target, drafter: NaiveDrafter, tokens: Sequence[int]) -> Tensor:
    """Draft logits [B - 1, V] after `tokens`, whose last one is the anchor."""
    if drafter.rules.target_layer_ids != target.layer_ids:
        raise ValueError(
            f"the drafter taps {drafter.rules.target_layer_ids}, not {target.layer_ids}"
        )
    taps_AN, _ = target.read(tokens[:-1])
    with torch.no_grad():
        return drafter.logits(taps_AN, tokens[-1], len(tokens) - 1, drafter.block_size)


def close_round(
    anchor: int, left: int, choices: list[Choice], **drafted: tuple[float, ...]
) -> Round:
    """`choices` are the target's along the accepted path; the last one is its own token."""
    accepted = min(len(choices) - 1, left)
    return Round(
        anchor=anchor,
        accepted=accepted,
        committed=min(accepted + 1, left),
        cut=accepted == left,
        target_margins=tuple(choice.margin for choice in choices[: accepted + 1]),
        **drafted,
    )


def naive_chain(
    target: Target, drafter: NaiveDrafter, prompt_ids: Sequence[int], n_tokens: int
) -> Decoded:
    """Draft a block, verify it in one forward, commit what matches and the target's next token."""
    tokens = [*prompt_ids, target.read(prompt_ids)[1].token]
    end = len(prompt_ids) + n_tokens
    rounds = []
    while len(tokens) < end:
        logits_DV = draft(target, drafter, tokens)
        drafted = logits_DV.argmax(-1).tolist()
        choices = target.choices(tokens + drafted, len(drafted) + 1)
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == choices[accepted].token:
            accepted += 1
        rounds.append(
            close_round(
                len(tokens) - 1,
                end - len(tokens),
                choices[: accepted + 1],
                drafted=tuple(drafted),
                parents=tuple(range(len(drafted))),
                draft_margins=tuple(choose(row_V).margin for row_V in logits_DV[: accepted + 1]),
            )
        )
        tokens += [choice.token for choice in choices[: accepted + 1]]
    return Decoded(tuple(tokens[len(prompt_ids) : end]), tuple(rounds))


def walk(target: Target, tree: Tree, tokens: Sequence[int]) -> list[Choice]:
    """The target's choices from the root down while the tree holds them, and the one after."""
    node, path, choices = 0, list(tokens), []
    while True:
        choices.append(target.read(path)[1])
        node = tree.children(node).get(choices[-1].token)
        if node is None:
            return choices
        path.append(choices[-1].token)


def walk_at_once(target: Target, tree: Tree, tokens: Sequence[int]) -> list[Choice]:
    """The same choices from one forward over all nodes, each seeing the text and its ancestors.

    For targets that are attention alone: a recurrent layer would mix siblings.
    """
    start, nodes = len(tokens), len(tree.tokens)
    parents = dict(enumerate(tree.parents, 1))
    depth = {0: 0}
    seen = torch.ones(start + nodes, start + nodes, dtype=torch.bool).tril()
    seen[start:, start:] = False
    for node, parent in parents.items():
        depth[node] = depth[parent] + 1
        step = node
        while step:
            seen[start + node - 1, start + step - 1] = True
            step = parents[step]
    positions = [*range(start), *(start - 1 + depth[node] for node in parents)]
    with torch.no_grad():
        logits_SV = target.model(
            input_ids=torch.tensor([[*tokens, *tree.tokens]]),
            attention_mask=torch.zeros(1, 1, *seen.shape).masked_fill(~seen, -math.inf),
            position_ids=torch.tensor([positions]),
            use_cache=False,
        ).logits[0]
    node, choices = 0, []
    while node is not None:
        choices.append(choose(logits_SV[start - 1 + node]))
        node = tree.children(node).get(choices[-1].token)
    return choices


def naive_tree(
    target: Target,
    drafter: NaiveDrafter,
    prompt_ids: Sequence[int],
    n_tokens: int,
    budget: int,
    width: int | None = None,
) -> Decoded:
    """Draft a tree of `budget` nodes and walk it; only nodes on the walk are put to the target."""
    tokens = [*prompt_ids, target.read(prompt_ids)[1].token]
    end = len(prompt_ids) + n_tokens
    rounds = []
    while len(tokens) < end:
        tree = best_first_tree(draft(target, drafter, tokens), budget, width)
        choices = walk(target, tree, tokens)
        rounds.append(
            close_round(
                len(tokens) - 1,
                end - len(tokens),
                choices,
                drafted=tree.tokens,
                parents=tree.parents,
                draft_margins=(tree.gap,),
            )
        )
        tokens += [choice.token for choice in choices]
    return Decoded(tuple(tokens[len(prompt_ids) : end]), tuple(rounds))


# ---- what a sampled token is drawn from ----------------------------------------------------------


def plain_distribution(
    logits: Sequence[float], temperature: float, top_k: int, top_p: float
) -> list[float]:
    """Probabilities of one row after temperature, top-k and top-p, token by token in float64."""
    scaled = [float(x) / temperature for x in logits]
    kept = set(range(len(scaled)))
    if top_k:
        kth = sorted(scaled, reverse=True)[min(top_k, len(scaled)) - 1]
        kept = {i for i in kept if scaled[i] >= kth}
    largest = max(scaled)
    weight = {i: math.exp(scaled[i] - largest) for i in kept}
    if top_p < 1:
        total = sum(weight.values())
        kept, mass = set(), 0.0
        for i in sorted(weight, key=lambda i: (-scaled[i], i)):
            kept.add(i)
            mass += weight[i] / total
            if mass >= top_p:
                break
    total = sum(weight[i] for i in kept)
    return [weight[i] / total if i in kept else 0.0 for i in range(len(scaled))]


# ---- a drafter that accepts ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How long a drafter is fitted to the greedy completions of a few prompts."""

    num_tokens: int = 48
    """Completion tokens of each prompt."""
    stop_at: float = 2.8
    """Stop when a chain commits as many tokens a round on these completions."""
    max_steps: int = 600
    anchors_per_step: int = 16
    """Drawn anew in each text at each step."""
    learning_rate: float = 1e-3
    seed: int = 0


USUAL_RECIPE = Recipe()


@dataclass(frozen=True, slots=True)
class Texts:
    """Prompts with their greedy completions, padded to one length."""

    tokens: Tensor
    """[P, S], padded with -100, which is never a label."""
    taps: Tensor
    """[P, S, N]"""
    first_anchors: Tensor
    """[P]"""
    num_anchors: int
    """Of each text."""

    def blocks(self, offsets_PM: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
        """Positions [P, M] and block tokens [P, M, B] of anchors counted from the first."""
        anchors_PM = self.first_anchors[:, None] + offsets_PM
        positions = anchors_PM[..., None] + torch.arange(block_size)
        rows = torch.arange(len(anchors_PM))[:, None, None]
        return anchors_PM, self.tokens[rows, positions]


def greedy_texts(
    target: Target, prompts: Sequence[Sequence[int]], recipe: Recipe, block_size: int
) -> Texts:
    whole = [[*prompt, *greedy(target, prompt, recipe.num_tokens)] for prompt in prompts]
    length = max(map(len, whole)) + block_size
    tokens_PS = torch.full((len(whole), length), -100)
    taps = []
    for row, tokens in enumerate(whole):
        tokens_PS[row, : len(tokens)] = torch.tensor(tokens)
        taps_SN = target.forward(tokens)[0]
        taps.append(functional.pad(taps_SN, (0, 0, 0, length - len(tokens))))
    first_anchor_P = torch.tensor([len(prompt) for prompt in prompts])
    return Texts(tokens_PS, torch.stack(taps), first_anchor_P, recipe.num_tokens - 1)


def many_logits(
    drafter: NaiveDrafter, taps_PSN: Tensor, anchors_PM: Tensor, anchor_tokens_PM: Tensor
) -> Tensor:
    """Logits [P, M, B - 1, V] for many anchors of many texts at once, for training only."""
    rules, block_size = drafter.rules, drafter.block_size
    tokens_PMB = torch.full((*anchors_PM.shape, block_size), rules.mask_token_id)
    tokens_PMB[..., 0] = anchor_tokens_PM
    x = drafter.embedding_VH[tokens_PMB] * rules.embedding_scale
    context = drafter.norm(drafter.linear(taps_PSN, "fc"), "hidden_norm")
    for layer in range(len(rules.layer_types)):
        name = f"layers.{layer}."
        block = drafter.norm(x, name + "input_layernorm")
        x = x + many_attention(drafter, layer, context, block, anchors_PM)
        x = x + drafter.mlp(layer, drafter.norm(x, name + "post_attention_layernorm"))
    return drafter.output(drafter.norm(x, "norm")[..., 1:, :])


def many_attention(
    drafter: NaiveDrafter, layer: int, context: Tensor, block: Tensor, anchors_PM: Tensor
) -> Tensor:
    """Attention of every block [P, M, B, H] over its text's rows [P, S, H] and over itself."""
    rules, name = drafter.rules, f"layers.{layer}.self_attn."
    queries_PMB = anchors_PM[..., None] + torch.arange(block.shape[2])
    rows_S = torch.arange(context.shape[1])

    def turned(x: Tensor, projection: str, num_heads: int, positions: Tensor) -> Tensor:
        heads = drafter.norm(
            drafter.heads(x, f"{name}{projection}_proj", num_heads), f"{name}{projection}_norm"
        )
        flat = rotate(heads.flatten(0, -3), positions.flatten(), rules.rope_theta)
        return flat.view_as(heads)

    groups = rules.num_key_heads
    q = turned(block, "q", rules.num_heads, queries_PMB).unflatten(-2, (groups, -1))
    k_context = turned(context, "k", groups, rows_S.expand(context.shape[:2]))
    k_block = turned(block, "k", groups, queries_PMB)
    v_context = drafter.heads(context, name + "v_proj", groups)
    v_block = drafter.heads(block, name + "v_proj", groups)
    to_context = torch.einsum("pmbghe,psge->pmghbs", q, k_context)
    to_block = torch.einsum("pmbghe,pmcge->pmghbc", q, k_block)
    in_window = lookback(rules, layer, queries_PMB, rows_S)
    in_context = rows_S < anchors_PM[..., None, None]
    in_block = lookback(rules, layer, queries_PMB, queries_PMB[:, :, None])
    seen = torch.cat([in_window & in_context, in_block], dim=-1)[:, :, None, None]
    scores = torch.cat([to_context, to_block], dim=-1) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    on_context, on_block = weights.split([len(rows_S), block.shape[2]], dim=-1)
    mixed = torch.einsum("pmghbs,psge->pmbghe", on_context, v_context)
    mixed = mixed + torch.einsum("pmghbc,pmcge->pmbghe", on_block, v_block)
    return drafter.linear(mixed.flatten(-3), name + "o_proj")


def lookback(rules: Rules, layer: int, queries: Tensor, keys: Tensor) -> Tensor:
    """`Rules.sees` for tensors: queries [..., B] against keys that broadcast to [..., B, K]."""
    distance = queries[..., None] - keys
    seen = torch.ones_like(distance, dtype=torch.bool)
    if rules.causal(layer):
        seen &= distance >= 0
    if rules.layer_types[layer] == "sliding_attention":
        seen &= distance.abs() < rules.sliding_window
    return seen


def mean_committed(drafter: NaiveDrafter, texts: Texts) -> float:
    """What a chain commits per round on these texts, ends cut, by the trainer's own forward."""
    offsets_PM = torch.arange(texts.num_anchors).expand(len(texts.tokens), -1)
    anchors_PM, tokens_PMB = texts.blocks(offsets_PM, drafter.block_size)
    with torch.no_grad():
        logits = many_logits(drafter, texts.taps, anchors_PM, tokens_PMB[..., 0])
    hits = (logits.argmax(-1) == tokens_PMB[..., 1:]).long()
    num_rounds = 0
    for accepted in hits.cumprod(-1).sum(-1).tolist():
        at = 0
        while at < texts.num_anchors:
            at += accepted[at] + 1
            num_rounds += 1
    return len(texts.tokens) * texts.num_anchors / num_rounds


def overfit(
    folder: Path,
    config: dict[str, Any],
    target: Target,
    prompts: Sequence[Sequence[int]],
    recipe: Recipe = USUAL_RECIPE,
) -> NaiveDrafter:
    """Write a drafter to `folder`, fitted to the target's completions and stopped while fallible.

    `config` is its config.json; the same arguments give the same weights.
    """
    tiny.write_drafter(folder, tiny.random_drafter(config, seed=recipe.seed), config)
    drafter = NaiveDrafter(folder, target.folder)
    generator = torch.Generator().manual_seed(recipe.seed)
    texts = greedy_texts(target, prompts, recipe, drafter.block_size)
    drafter.weights["norm.weight"] /= drafter.head_VH.std() * math.sqrt(drafter.head_VH.shape[1])
    weights = [weight.requires_grad_() for weight in drafter.weights.values()]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0)
    early_first_D = torch.exp(-torch.arange(drafter.block_size - 1) / 3.0)
    for step in range(recipe.max_steps):
        if step % 4 == 0 and mean_committed(drafter, texts) >= recipe.stop_at:
            break
        draws = (len(prompts), recipe.anchors_per_step)
        offsets_PM = torch.randint(0, texts.num_anchors, draws, generator=generator)
        anchors_PM, tokens_PMB = texts.blocks(offsets_PM, drafter.block_size)
        logits = many_logits(drafter, texts.taps, anchors_PM, tokens_PMB[..., 0])
        labels = tokens_PMB[..., 1:]
        losses = functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), reduction="none"
        ).view(labels.shape)
        optimizer.zero_grad()
        (losses * early_first_D).mean().backward()
        optimizer.step()
    else:
        raise RuntimeError(f"no mean of {recipe.stop_at} within {recipe.max_steps} steps")
    drafter.weights = {name: weight.detach() for name, weight in drafter.weights.items()}
    tiny.write_drafter(folder, drafter.weights, config)
    return drafter


@dataclass(frozen=True, slots=True)
class Pair:
    """A tiny target, and a drafter that was fitted to what it says after `prompts`."""

    target: Target
    drafter: NaiveDrafter
    drafter_folder: Path
    prompts: tuple[tuple[int, ...], ...]


def fit_pair(folder: Path, target: Target, architecture: tiny.Architecture, **changes: Any) -> Pair:
    """Fit the usual drafter for this target, its shape `changes`d (`tiny.DrafterShape`)."""
    config = tiny.drafter_config(tiny.DrafterShape.of(architecture, **changes))
    prompts = tuple(map(tuple, tiny.random_prompts(5)))
    return Pair(target, overfit(folder, config, target, prompts), folder, prompts)
