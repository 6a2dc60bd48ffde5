"""A folder with the true sizes of Qwen3.6-27B and no weights: headers over files that are holes.

Names and shapes are written down from the checkpoint's own index, not asked of transformers.
Imports nothing of draftlab.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

HIDDEN, LAYERS, INNER, VOCAB = 5120, 64, 17408, 248320
LAYERS_PER_FILE = 16

CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "intermediate_size": INNER, "num_attention_heads": 24, "num_key_value_heads": 4,
        "head_dim": 256, "vocab_size": VOCAB, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10], "mrope_interleaved": True,
        },
    },
    "vision_config": {"hidden_size": 1152, "depth": 2, "out_hidden_size": HIDDEN},
}  # fmt: skip


def is_full(layer: int) -> bool:
    """Every fourth layer attends; the others are linear."""
    return (layer + 1) % 4 == 0


def layer_shapes(layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors of one decoder layer."""
    prefix = f"model.language_model.layers.{layer}."
    if is_full(layer):
        own = {
            "self_attn.q_proj.weight": (2 * 24 * 256, HIDDEN),  # queries and their gate
            "self_attn.k_proj.weight": (4 * 256, HIDDEN),
            "self_attn.v_proj.weight": (4 * 256, HIDDEN),
            "self_attn.o_proj.weight": (HIDDEN, 24 * 256),
            "self_attn.q_norm.weight": (256,),
            "self_attn.k_norm.weight": (256,),
        }
    else:
        own = {
            "linear_attn.in_proj_qkv.weight": (2 * 16 * 128 + 48 * 128, HIDDEN),
            "linear_attn.in_proj_z.weight": (48 * 128, HIDDEN),
            "linear_attn.in_proj_b.weight": (48, HIDDEN),
            "linear_attn.in_proj_a.weight": (48, HIDDEN),
            "linear_attn.conv1d.weight": (2 * 16 * 128 + 48 * 128, 1, 4),
            "linear_attn.dt_bias": (48,),
            "linear_attn.A_log": (48,),
            "linear_attn.norm.weight": (128,),
            "linear_attn.out_proj.weight": (HIDDEN, 48 * 128),
        }
    own |= {
        "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INNER),
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }
    for name, shape in own.items():
        yield prefix + name, shape


def other_shapes() -> dict[str, tuple[int, ...]]:
    """What is not a decoder layer; the last two are for other uses than text."""
    return {
        "model.language_model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.language_model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
        "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
        "model.visual.patch_embed.proj.bias": (1152,),
    }


def write_folder(folder: Path) -> Path:
    """The config, the index, and five files of the right length that take no disk."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    files = [other_shapes()]
    for first in range(0, LAYERS, LAYERS_PER_FILE):
        layers = range(first, first + LAYERS_PER_FILE)
        files.append({name: shape for i in layers for name, shape in layer_shapes(i)})
    index = {}
    for number, shapes in enumerate(files, start=1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        write_hole(folder / name, shapes)
        index.update(dict.fromkeys(shapes, name))
    index_text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(index_text)
    return folder


def write_hole(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A file with these bfloat16 tensors, whose data are a hole."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
