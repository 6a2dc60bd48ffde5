"""How much a step computes: the operations of its matrix products.

Shape letters as in the forward: S context rows, N blocks of B slots, R labelled rows.
"""

from __future__ import annotations

from draftlab.drafter.config import DrafterConfig
from draftlab.target.facts import TargetFacts


def step_operations(
    shape: DrafterConfig, facts: TargetFacts, *, context_rows: int, blocks: int, labelled: int
) -> float:
    """Floating-point operations of the matrix products of one forward and backward.

    A product with trained weights counts three times (forward, and two in the backward), the frozen
    head twice. Attention scores are left out: a few per cent at these lengths.
    """
    hidden, head_dim = shape.hidden_size, shape.head_dim
    keys_values = 2 * hidden * shape.num_key_value_heads * head_dim
    queries = 2 * hidden * shape.num_attention_heads * head_dim  # and the output projection
    mlp = 3 * hidden * shape.intermediate_size
    depth, rows = len(shape.layers), blocks * shape.block_size
    context = context_rows * (shape.num_taps * hidden * hidden + depth * keys_values)
    drafted = rows * depth * (keys_values + queries + mlp)
    head = labelled * hidden * facts.vocab_size
    return 2.0 * (3 * (context + drafted) + 2 * head)
