"""Tiny random targets and drafters, saved as the folders that users have.

Targets go through transformers' own classes (fp32, config.json, safetensors). Their weights are
large on purpose: with the usual 0.02 every greedy text is one token for ever, and a drafter tested
on it proves nothing. Imports nothing of draftlab.
"""

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

Architecture = Literal["qwen3", "qwen3_5", "llama", "gemma3"]
Style = Literal["legacy", "nested"]

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
VOCAB_SIZE = 160
HIDDEN_SIZE = 64
MASK_TOKEN_ID = 159
NUM_LAYERS: dict[Architecture, int] = {"qwen3": 4, "qwen3_5": 8, "llama": 4, "gemma3": 6}
TAPS: dict[Architecture, tuple[int, ...]] = {
    "qwen3": (1, 2),
    "qwen3_5": (1, 3, 5),  # linear, full, linear
    "llama": (0, 2),
    "gemma3": (1, 2, 4),  # sliding, full, sliding
}
EMBEDDING_SCALE: dict[Architecture, float] = {
    "qwen3": 1.0,
    "qwen3_5": 1.0,
    "llama": 1.0,
    "gemma3": HIDDEN_SIZE**0.5,  # exactly 8, so no rounding tells the two places of scaling apart
}

SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
LINEAR_STD = 0.25  # twice 1/sqrt(hidden): attention is sharp and texts wander
LOGIT_STD = 3.2  # what the head makes of a normalised state


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars or log lines of transformers while a folder is written or read."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def qwen3(*, tied: bool) -> PreTrainedModel:
    config = transformers.Qwen3Config(
        **SHAPE,
        num_hidden_layers=NUM_LAYERS["qwen3"],
        head_dim=16,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    return transformers.Qwen3ForCausalLM(config)


def llama(*, tied: bool) -> PreTrainedModel:
    config = transformers.LlamaConfig(
        **SHAPE,
        num_hidden_layers=NUM_LAYERS["llama"],
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
    )
    return transformers.LlamaForCausalLM(config)


def gemma3(*, tied: bool) -> PreTrainedModel:
    config = transformers.Gemma3TextConfig(
        **SHAPE,
        num_hidden_layers=NUM_LAYERS["gemma3"],
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=8,
        sliding_window_pattern=3,  # sliding, sliding, full, twice
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=tied,
    )
    return transformers.Gemma3ForCausalLM(config)


def qwen3_5(*, tied: bool) -> PreTrainedModel:
    """The multimodal class, because that is what real Qwen3.5 folders hold."""
    text = {
        **SHAPE,
        "num_hidden_layers": NUM_LAYERS["qwen3_5"],
        "full_attention_interval": 4,
        "head_dim": 32,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "tie_word_embeddings": tied,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 4,
        "out_hidden_size": HIDDEN_SIZE,
        "num_position_embeddings": 16,
    }
    config = transformers.Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=tied,
        vision_start_token_id=150,
        vision_end_token_id=151,
        image_token_id=152,
        video_token_id=153,
    )
    return transformers.Qwen3_5ForConditionalGeneration(config)


BUILD = {"qwen3": qwen3, "qwen3_5": qwen3_5, "llama": llama, "gemma3": gemma3}


def make_lively(model: PreTrainedModel, architecture: Architecture, seed: int) -> None:
    """Draw weights under which the greedy text wanders; vectors stay near what the class gave."""
    generator = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings().weight
    tied = head is model.get_input_embeddings().weight
    # A tied head favours the last token again: Gemma's embedding times 8 must not drown the layers.
    table_std = 0.02 if architecture == "gemma3" and tied else LOGIT_STD / HIDDEN_SIZE**0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith(("A_log", "dt_bias")):
                continue
            if weight.ndim == 1:
                weight.add_(0.2 * noise)
            else:
                is_table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
                weight.copy_((table_std if is_table else LINEAR_STD) * noise)
        if (
            architecture == "gemma3" and tied
        ):  # as in real Gemmas, a large last norm makes up for it
            model.model.norm.weight.add_(LOGIT_STD / (table_std * HIDDEN_SIZE**0.5) - 1)


def add_mtp_tensors(folder: Path, seed: int) -> None:
    """Real Qwen3.5 files carry a multi-token-prediction layer that readers must pass over."""
    file = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(seed)
    extra = {
        "mtp.fc.weight": torch.randn(HIDDEN_SIZE, 2 * HIDDEN_SIZE, generator=generator),
        "mtp.norm.weight": torch.randn(HIDDEN_SIZE, generator=generator),
        "mtp.layers.0.input_layernorm.weight": torch.randn(HIDDEN_SIZE, generator=generator),
    }
    save_file({**load_file(file), **extra}, file, metadata={"format": "pt"})


def write_target(folder: Path, architecture: Architecture, *, tied: bool, seed: int = 0) -> Path:
    """Save a random target as `folder`; the same arguments give the same bytes."""
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for what make_lively leaves as the class drew it
        model = BUILD[architecture](tied=tied)
        make_lively(model, architecture, seed)
        model.save_pretrained(folder)
    if architecture == "qwen3_5":
        add_mtp_tensors(folder, seed)
    return folder


def write_wordy_target(folder: Path, tokenizer: Path, *, seed: int = 5) -> Path:
    """Save a random Qwen3 whose vocabulary is that of a real tokenizer, with the tokenizer's files.

    For programs that do without token ids, or want a tokenizer in any case.
    """
    end = json.loads((tokenizer / "config.json").read_text())["text_config"]
    config = transformers.Qwen3Config(
        **{**SHAPE, "vocab_size": end["vocab_size"]},
        num_hidden_layers=NUM_LAYERS["qwen3"],
        head_dim=32,
        eos_token_id=end["eos_token_id"],
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    with quiet():
        model = transformers.Qwen3ForCausalLM(config)
        make_lively(model, "qwen3", seed)
        model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder / name)
    return folder


def load_target(folder: Path) -> PreTrainedModel:
    """The folder as transformers opens it for text."""
    with quiet():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def random_prompts(count: int, *, seed: int = 0) -> list[list[int]]:
    """Prompts of 5 to 16 random token ids; the mask token never among them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 17, (count,), generator=generator).tolist()
    return [
        torch.randint(0, MASK_TOKEN_ID, (length,), generator=generator).tolist()
        for length in lengths
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """What a drafter's config.json says. Its heads differ from the targets', as they may."""

    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    block_size: int = 6
    layer_types: tuple[str, ...] = ("full_attention", "full_attention")
    sliding_window: int | None = None
    is_causal: bool | None = None
    input_embedding_scale: float | None = None
    output_multiplier: float | None = None
    final_logit_softcapping: float | None = None
    attention_bias: bool = False
    rope_theta: float = 1e6
    style: Style = "legacy"

    @classmethod
    def of(cls, architecture: Architecture, **changes: Any) -> "DrafterShape":
        """The usual drafter of one of the targets above, with `changes`."""
        scale = EMBEDDING_SCALE[architecture]
        usual = {
            "target_layer_ids": TAPS[architecture],
            "num_target_layers": NUM_LAYERS[architecture],
            "input_embedding_scale": None if scale == 1 else scale,
        }
        return cls(**{**usual, **changes})


def drafter_config(shape: DrafterShape) -> dict[str, Any]:
    """config.json in z-lab's layout: `legacy` as until May 2026, `nested` as from June 2026."""
    inner: dict[str, Any] = {
        "target_layer_ids": list(shape.target_layer_ids),
        "mask_token_id": MASK_TOKEN_ID,
    }
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **SHAPE,
        "num_attention_heads": 6,
        "head_dim": 16,
        "num_hidden_layers": len(shape.layer_types),
        "num_target_layers": shape.num_target_layers,
        "attention_bias": shape.attention_bias,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "layer_types": list(shape.layer_types),
        "max_window_layers": len(shape.layer_types),
        "sliding_window": shape.sliding_window,
        "use_sliding_window": shape.sliding_window is not None,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "dflash_config": inner,
    }
    if shape.style == "legacy":
        config |= {
            "block_size": shape.block_size,
            "rope_theta": shape.rope_theta,
            "rope_scaling": None,
        }
    else:
        inner["block_size"] = shape.block_size
        config["rope_parameters"] = {"rope_theta": shape.rope_theta, "rope_type": "default"}
    for key in ("input_embedding_scale", "output_multiplier", "final_logit_softcapping"):
        if (value := getattr(shape, key)) is not None:
            inner[key] = value
    if shape.is_causal is not None:
        config["is_causal"] = shape.is_causal
    return config


def drafter_shapes(config: dict[str, Any]) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor of a z-lab drafter (58 for five layers without biases)."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    yield "fc.weight", (hidden, len(config["dflash_config"]["target_layer_ids"]) * hidden)
    yield "hidden_norm.weight", (hidden,)
    yield "norm.weight", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        attention, mlp = f"layers.{layer}.self_attn.", f"layers.{layer}.mlp."
        yield f"layers.{layer}.input_layernorm.weight", (hidden,)
        yield f"layers.{layer}.post_attention_layernorm.weight", (hidden,)
        for name, rows, columns in (
            ("q_proj", queries, hidden),
            ("k_proj", keys, hidden),
            ("v_proj", keys, hidden),
            ("o_proj", hidden, queries),
        ):
            yield f"{attention}{name}.weight", (rows, columns)
            if config["attention_bias"]:
                yield f"{attention}{name}.bias", (rows,)
        yield f"{attention}q_norm.weight", (config["head_dim"],)
        yield f"{attention}k_norm.weight", (config["head_dim"],)
        yield f"{mlp}gate_proj.weight", (inner, hidden)
        yield f"{mlp}up_proj.weight", (inner, hidden)
        yield f"{mlp}down_proj.weight", (hidden, inner)


def random_drafter(config: dict[str, Any], *, seed: int = 0) -> dict[str, torch.Tensor]:
    """An untrained drafter for this config; norms near 1 and biases near 0, so that each counts."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in drafter_shapes(config):
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            weights[name] = 1 + 0.1 * noise
        elif name.endswith(".bias"):
            weights[name] = 0.1 * noise
        else:
            weights[name] = noise / shape[1] ** 0.5
    return weights


def write_drafter(
    folder: Path, state_dict: dict[str, torch.Tensor], config: dict[str, Any]
) -> Path:
    """Save a drafter in z-lab's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().contiguous() for name, weight in state_dict.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder
