"""What a target model is, from its config.json alone; no torch.

A config may be flat (Qwen3, Llama), nested under `text_config` (Qwen3.5/3.6, Gemma 3 multimodal) or
under another name. A fact that is needed and missing is an error that names the keys looked for;
nothing here is ever None by accident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

from draftlab.base.errors import TargetError
from draftlab.base.records import Record, read_json
from draftlab.target.rope import Rope, read_rope

LayerKind = Literal["full_attention", "sliding_attention", "linear_attention"]

_NESTED_KEYS = ("text_config", "llm_config", "language_config")
_FULL, _SLIDING, _LINEAR = get_args(LayerKind)


class LinearAttentionFacts(Record):
    """Shape of the gated delta-net layers of a hybrid target."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int

    def state_bytes(self, *, state_value_bytes: int = 4, conv_value_bytes: int = 2) -> int:
        """Bytes one sequence keeps in one such layer, however long it is."""
        recurrent = self.num_value_heads * self.key_head_dim * self.value_head_dim
        channels = (
            2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim
        )
        return recurrent * state_value_bytes + channels * (self.conv_kernel - 1) * conv_value_bytes


class TargetFacts(Record):
    """The shape of one target model."""

    architecture: str
    """Class name from `architectures`."""
    model_type: str
    nested_under: str
    """Key under which the text model's settings lie; empty for a flat config."""
    num_layers: int
    hidden_size: int
    vocab_size: int
    """Rows of the head that are tokens; rows beyond are padding and never drafted."""
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    layer_kinds: tuple[LayerKind, ...]
    """One per decoder layer, in order."""
    sliding_window: int | None
    """Tokens a sliding layer sees; None where no layer slides."""
    linear: LinearAttentionFacts | None
    """Set where some layers are linear attention."""
    ties_embeddings: bool
    """Whether the config says that the head is the embedding matrix."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end a text: those of config.json, then those that generation_config.json adds."""
    pad_token_id: int | None

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read `folder/config.json`, and what ends a text from generation_config.json too.

        Chat models may name only `<|endoftext|>` in the first (Qwen3.5) and `<|im_end|>`, which
        their answers end with, in the second.

        Raises:
            TargetError: no folder, no config, or a needed fact is missing.
        """
        if not folder.is_dir():
            raise TargetError(f"no folder {folder}.", mend="Point --target at the model's folder.")
        if not (folder / "config.json").is_file():
            raise TargetError(
                f"{folder} has no config.json.", mend="Point --target at a whole model folder."
            )
        facts = cls.from_config(read_json(folder / "config.json"))
        generation = folder / "generation_config.json"
        added = _ids(read_json(generation).get("eos_token_id")) if generation.is_file() else ()
        ends = tuple(dict.fromkeys([*facts.eos_token_ids, *added]))
        return facts.model_copy(update={"eos_token_ids": ends})

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Facts from a parsed config.json.

        Raises:
            TargetError: a needed fact is missing; the message names the keys looked for.
        """
        key, text = text_scope(config)
        num_layers = _need(text, key, "num_hidden_layers", "n_layer", "num_layers")
        hidden_size = _need(text, key, "hidden_size", "n_embd", "d_model")
        heads = _need(text, key, "num_attention_heads", "n_head")
        kinds = _layer_kinds(text, num_layers)
        head_dim = text.get("head_dim") or hidden_size // heads
        return cls(
            architecture=str((config.get("architectures") or ["unknown"])[0]),
            model_type=str(config.get("model_type", text.get("model_type", "unknown"))),
            nested_under=key,
            num_layers=num_layers,
            hidden_size=hidden_size,
            vocab_size=_need(text, key, "vocab_size"),
            num_attention_heads=heads,
            num_key_value_heads=int(text.get("num_key_value_heads") or heads),
            head_dim=int(head_dim),
            layer_kinds=kinds,
            sliding_window=_window(text, key) if _SLIDING in kinds else None,
            linear=_linear(text, key) if _LINEAR in kinds else None,
            ties_embeddings=bool(
                text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
            ),
            eos_token_ids=_ids(text.get("eos_token_id", config.get("eos_token_id"))),
            pad_token_id=text.get("pad_token_id", config.get("pad_token_id")),
        )

    def count(self, kind: LayerKind) -> int:
        """How many layers are of this kind."""
        return self.layer_kinds.count(kind)

    def kv_cache_bytes(self, num_tokens: int, *, value_bytes: int = 2) -> int:
        """Keys and values of one sequence of `num_tokens`, summed layer by layer.

        Full layers keep every token, sliding layers at most their window, linear layers none
        (their fixed state is `linear_state_bytes`).
        """
        per_token = 2 * self.num_key_value_heads * self.head_dim * value_bytes
        slid = min(num_tokens, self.sliding_window or num_tokens)
        return per_token * (self.count(_FULL) * num_tokens + self.count(_SLIDING) * slid)

    def linear_state_bytes(self) -> int:
        """Fixed state of all linear-attention layers of one sequence."""
        return 0 if self.linear is None else self.count(_LINEAR) * self.linear.state_bytes()


def text_scope(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The key under which the text model's settings lie ("" if flat), and those settings."""
    for key in _NESTED_KEYS:
        value = config.get(key)
        if isinstance(value, Mapping) and value:
            return key, value
    return "", config


def target_rope(folder: Path, *, layer_kind: LayerKind = "full_attention") -> Rope:
    """Rotary settings of the target in `folder`, for one kind of layer."""
    _, text = text_scope(read_json(folder / "config.json"))
    return read_rope(text, layer_kind=layer_kind)


def _need(text: Mapping[str, Any], nested_under: str, *keys: str) -> int:
    """The first of `keys` that is there, as a positive int."""
    where = f"`{nested_under}.`" if nested_under else "the top level"
    for key in keys:
        value = text.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TargetError(
                f"config.json: `{key}` at {where} is {value!r}; a positive whole number is needed.",
                mend="Check that config.json is the model's own.",
            )
        return value
    raise TargetError(
        f"config.json has none of {', '.join(f'`{key}`' for key in keys)} at {where}.",
        mend=f"Check that this is a language model's config (nested keys tried: "
        f"{', '.join(_NESTED_KEYS)}).",
    )


def _layer_kinds(text: Mapping[str, Any], num_layers: int) -> tuple[LayerKind, ...]:
    """One kind per layer: the list if the config has one, else the rule its family uses."""
    listed = text.get("layer_types")
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        return _listed_kinds(listed, num_layers)
    interval = text.get("full_attention_interval")
    if interval or "linear_num_value_heads" in text:
        step = int(interval or 4)  # Qwen3-Next and Qwen3.5: layer i is full iff (i + 1) % 4 == 0
        return tuple(_FULL if (i + 1) % step == 0 else _LINEAR for i in range(num_layers))
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 0:  # Gemma 2/3: every pattern-th layer is full
        return tuple(_FULL if (i + 1) % pattern == 0 else _SLIDING for i in range(num_layers))
    if text.get("sliding_window") and text.get("use_sliding_window", True):
        first = int(text.get("max_window_layers", 0)) if "use_sliding_window" in text else 0
        return tuple(_FULL if i < first else _SLIDING for i in range(num_layers))
    return (_FULL,) * num_layers


def _listed_kinds(listed: Sequence[Any], num_layers: int) -> tuple[LayerKind, ...]:
    names: dict[str, LayerKind] = {
        "full_attention": _FULL,
        "attention": _FULL,
        "sliding_attention": _SLIDING,
        "linear_attention": _LINEAR,
    }
    unknown = sorted({str(name) for name in listed} - set(names))
    if unknown:
        raise TargetError(
            f"config.json: layer_types has {', '.join(unknown)}; known are {', '.join(names)}.",
            mend="This kind of layer is not supported yet.",
        )
    if len(listed) != num_layers:
        raise TargetError(
            f"config.json: layer_types has {len(listed)} entries for {num_layers} layers.",
            mend="Check config.json; one of the two is wrong.",
        )
    return tuple(names[name] for name in listed)


def _window(text: Mapping[str, Any], nested_under: str) -> int:
    return _need(text, nested_under, "sliding_window")


def _linear(text: Mapping[str, Any], nested_under: str) -> LinearAttentionFacts:
    return LinearAttentionFacts(
        num_key_heads=_need(text, nested_under, "linear_num_key_heads"),
        num_value_heads=_need(text, nested_under, "linear_num_value_heads"),
        key_head_dim=_need(text, nested_under, "linear_key_head_dim"),
        value_head_dim=_need(text, nested_under, "linear_value_head_dim"),
        conv_kernel=_need(text, nested_under, "linear_conv_kernel_dim"),
    )


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    values: list[Any] = value if isinstance(value, list) else [value]
    return tuple(int(v) for v in values)
