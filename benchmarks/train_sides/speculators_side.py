"""The side of speculators in benchmarks/train.py, in an environment of its own.

    python speculators_side.py PROBLEM DTYPE THREADS ATTENTION

The model is called as speculators' trainer calls it: one packed row, its own loss and metrics,
bfloat16 by autocast over float32 weights. Only the anchors are given instead of drawn, so that both
sides draft the same blocks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from child import Problem, serve
from speculators.losses import resolve_loss_config
from speculators.models.dflash import DFlashSpeculatorConfig, core
from transformers import Qwen3Config


def build(problem: Problem, attention: str) -> core.DFlashDraftModel:
    """The model with the problem's weights."""
    shape = problem.shape
    layer = Qwen3Config(
        **{
            key: shape[key]
            for key in (
                "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
                "num_key_value_heads", "head_dim", "num_hidden_layers", "rms_norm_eps",
                "rope_theta", "max_position_embeddings", "layer_types",
            )
        },
    )  # fmt: skip
    layer._attn_implementation = attention  # noqa: SLF001  # as its own trainer sets it
    config = DFlashSpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=shape["vocab_size"],
        block_size=shape["block_size"],
        aux_hidden_state_layer_ids=[i + 1 for i in shape["dflash_config"]["target_layer_ids"]],
        mask_token_id=shape["dflash_config"]["mask_token_id"],
    )
    model = core.DFlashDraftModel(config)
    state = dict(problem.weights)
    for name in ("embed_tokens", "lm_head", "verifier_lm_head"):
        state[f"{name}.weight"] = problem.table_VH
    state["verifier_norm.weight"] = problem.last_norm_H
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise SystemExit(f"speculators: missing {missing}, unexpected {unexpected}")
    return model.train()


def main() -> None:
    """Serve steps."""
    folder, dtype, threads, attention = sys.argv[1:]
    problem = Problem.read(Path(folder), dtype)
    model = build(problem, attention)
    lengths = [len(document["tokens"]) for document in problem.documents]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    anchors = torch.cat(
        [d["anchors"] + start for d, start in zip(problem.documents, starts, strict=True)]
    )
    core.select_anchors = lambda *_: (anchors, torch.ones(len(anchors), dtype=torch.bool))

    documents = problem.documents

    def packed(name: str) -> torch.Tensor:
        return torch.cat([document[name] for document in documents])[None]

    batch = {
        "hidden_states": packed("taps").to(problem.dtype),
        "input_ids": packed("tokens"),
        "loss_mask": torch.cat(
            [(torch.arange(n) >= problem.prompt_length).long() for n in lengths]
        )[None],
        "verifier_last_hidden_states": packed("last").to(problem.dtype),
        "document_ids": torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])[None],
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "loss_config": resolve_loss_config("ce", "eager"),
        "gamma": problem.gamma,
        "max_anchors": len(anchors),
        "per_position_loss_weight": "fixed-exp-decay",
    }
    mixed = problem.dtype != torch.float32
    del problem  # the model has copies of what it needs
    documents.clear()
    weights = [w for w in model.parameters() if w.requires_grad]
    optimizer = torch.optim.AdamW(weights, 1e-6)

    def step() -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            _, loss, _ = model(**batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        return float(loss.detach())

    serve(step, int(threads))


if __name__ == "__main__":
    main()
