"""What a DFlash drafter is, from its config.json alone; no torch.

Reads the layouts that z-lab has published: legacy (block size at the top level, taps and mask id in
`dflash_config`), nested (all in `dflash_config`), with full and sliding layers. Each value
remembers where it was found. What decides silently whether a drafter works (taps, mask token, RoPE
base, block size) is never guessed.

Source: z-lab/dflash, model.py and published config.json files; the rule for causality is that of
its August 2026 version (`is_causal` if set, else causal in sliding layers only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from draftlab.base.errors import DrafterError, DraftlabError
from draftlab.base.records import Record, read_json
from draftlab.target.facts import TargetFacts
from draftlab.target.rope import Rope, read_rope

NESTED = "dflash_config"


class LayerAttention(Record):
    """Who a block's slots may read in one drafter layer."""

    window: int | None
    """Positions a slot sees, its own included; None is no limit."""
    causal: bool
    """Whether a slot sees only itself and earlier slots of its own block."""


class DrafterConfig(Record):
    """Shape of one DFlash drafter. Checked once, here; trusted everywhere else."""

    block_size: int
    """Slots per draft block, the anchor included; drafts block_size - 1."""
    mask_token_id: int
    """Token id fed to the unknown slots."""
    target_layer_ids: tuple[int, ...]
    """Taps: target layers whose output is read; 0 is the first decoder layer."""
    num_target_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    max_positions: int
    attention_bias: bool
    layers: tuple[LayerAttention, ...]
    """One per drafter layer, in order."""
    input_embedding_scale: float
    """Factor on the target's embedding rows (Gemma-style targets need sqrt(hidden))."""
    output_multiplier: float
    """Factor on the logits."""
    logit_softcap: float | None
    """Logits are softcap * tanh(logits / softcap) where set."""
    found_at: dict[str, str] = Field(default_factory=dict)
    """Where each of the values that have several homes was read."""
    notes: tuple[str, ...] = ()
    """What is allowed but worth knowing."""

    @property
    def num_drafted(self) -> int:
        """Tokens drafted per round, D."""
        return self.block_size - 1

    @property
    def num_taps(self) -> int:
        """Tapped target layers, n."""
        return len(self.target_layer_ids)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read `folder/config.json`.

        Raises:
            DrafterError: no folder or config, another layout, or a value missing or out of range.
        """
        if not folder.is_dir():
            raise DrafterError(
                f"no folder {folder}.", mend="Point --drafter at a drafter's folder."
            )
        if not (folder / "config.json").is_file():
            raise DrafterError(
                f"{folder} has no config.json.", mend="Copy the whole checkpoint folder."
            )
        return cls.from_config(read_json(folder / "config.json"))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """A checked config from a parsed config.json.

        Raises:
            DrafterError: another layout, or a value missing, contradictory or out of range.
        """
        _refuse_other_layouts(config)
        reader = _Reader(config)
        hidden = reader.whole("hidden_size")
        heads = reader.whole("num_attention_heads")
        rope, notes = _rope(config)
        return cls(
            block_size=reader.whole("block_size"),
            mask_token_id=reader.whole("mask_token_id"),
            target_layer_ids=reader.taps(hidden),
            num_target_layers=reader.whole("num_target_layers"),
            hidden_size=hidden,
            intermediate_size=reader.whole("intermediate_size"),
            num_attention_heads=heads,
            num_key_value_heads=reader.whole("num_key_value_heads"),
            head_dim=reader.whole("head_dim", default=hidden // heads),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=rope,
            max_positions=reader.whole("max_position_embeddings", default=40960),
            attention_bias=bool(config.get("attention_bias", False)),
            layers=_layers(config, reader.whole("num_hidden_layers")),
            input_embedding_scale=reader.real("input_embedding_scale", 1.0),
            output_multiplier=reader.real("output_multiplier", 1.0),
            logit_softcap=reader.real("final_logit_softcapping", None),
            found_at=reader.found_at,
            notes=(*rope.warnings, *notes),
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.block_size < 2:
            raise DrafterError(
                f"block_size is {self.block_size}: no slot is left to draft.",
                mend="Use 2 or more (published drafters use 8 to 16).",
            )
        ids, depth = self.target_layer_ids, self.num_target_layers
        absent = [i for i in ids if not 0 <= i < depth]
        if absent:
            raise DrafterError(
                f"target_layer_ids names {absent}; the target has layers 0 to {depth - 1}.",
                mend="Subtract 1 if these ids count the embedding output as layer 0.",
            )
        if list(ids) != sorted(set(ids)):
            raise DrafterError(
                f"target_layer_ids {list(ids)} repeats a layer or is out of order.",
                mend="List each tapped layer once, ascending, in the order `fc` was trained with.",
            )
        narrow = [
            layer.window for layer in self.layers if layer.window and layer.window < self.block_size
        ]
        if narrow:
            raise DrafterError(
                f"a sliding window of {narrow[0]} is narrower than the block of {self.block_size}.",
                mend="Engines disagree on that case; use a window of at least the block size.",
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise DrafterError(
                f"{self.num_attention_heads} query heads cannot share {self.num_key_value_heads} "
                "key-value heads evenly.",
                mend="Check num_key_value_heads in config.json.",
            )
        return self

    def with_block_size(self, block_size: int) -> Self:
        """The same drafter run at another block size."""
        return type(self).model_validate({**self.model_dump(), "block_size": block_size})

    def require_fit(self, target: TargetFacts, *, embedding_rows: int) -> tuple[str, ...]:
        """Check this drafter against its target; return what is allowed but worth knowing.

        Raises:
            DrafterError: widths or depths differ, or the mask token cannot be one.
        """
        pairs = (
            ("hidden_size", self.hidden_size, target.hidden_size),
            ("num_target_layers", self.num_target_layers, target.num_layers),
        )
        for name, mine, theirs in pairs:
            if mine != theirs:
                raise DrafterError(
                    f"the drafter has {name} {mine}, the target {theirs}.",
                    mend="This drafter was made for another target.",
                )
        notes = list(self.notes)
        if self.target_layer_ids[-1] == target.num_layers - 1:
            notes.append(
                f"tap {target.num_layers - 1} is the output of the last layer, "
                "before the final norm."
            )
        notes.extend(self._mask_token_notes(target, embedding_rows))
        return tuple(notes)

    def _mask_token_notes(self, target: TargetFacts, embedding_rows: int) -> list[str]:
        mask = self.mask_token_id
        if not 0 <= mask < embedding_rows:
            raise DrafterError(
                f"mask_token_id {mask} is outside the target's {embedding_rows} embedding rows.",
                mend="Set mask_token_id to the reserved row that the drafter was trained with.",
            )
        if mask in target.eos_token_ids:
            also = " and the pad token" if mask == target.pad_token_id else ""
            raise DrafterError(
                f"mask_token_id {mask} is the target's end-of-text token{also}.",
                mend="Set mask_token_id to a reserved token; "
                "a drafter masked with it learns to stop.",
            )
        return [f"mask_token_id {mask} is the pad token."] if mask == target.pad_token_id else []


class _Reader:
    """Values that may stand in `dflash_config` or at the top level; remembers where each stood."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        nested = config.get(NESTED)
        self._scopes = [(f"{NESTED}.", nested)] if isinstance(nested, Mapping) else []
        self._scopes.append(("", config))
        self.found_at: dict[str, str] = {}

    def _find(self, key: str) -> Any:
        found = [(where, scope[key]) for where, scope in self._scopes if scope.get(key) is not None]
        if not found:
            return None
        if any(value != found[0][1] for _, value in found):
            listed = ", ".join(f"{where}{key} = {value}" for where, value in found)
            raise DrafterError(
                f"config.json contradicts itself: {listed}.", mend="Keep the right one."
            )
        self.found_at[key] = f"{found[0][0]}{key}"
        return found[0][1]

    def whole(self, key: str, *, default: int | None = None) -> int:
        value = self._find(key)
        if value is None:
            if default is not None:
                return default
            raise DrafterError(
                f"config.json has no `{key}`; looked for `{NESTED}.{key}` and `{key}`.",
                mend="Add the value the drafter was trained with; it is never guessed.",
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise DrafterError(
                f"config.json: `{self.found_at[key]}` is {value!r}; a whole number is needed.",
                mend="Check config.json.",
            )
        return value

    def real(self, key: str, default: float | None) -> Any:
        value = self._find(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DrafterError(
                f"config.json: `{self.found_at[key]}` is {value!r}; a number is needed.",
                mend="Check config.json.",
            )
        return float(value)

    def taps(self, hidden_size: int) -> tuple[int, ...]:
        value = self._find("target_layer_ids")
        if value is None:
            raise DrafterError(
                f"config.json has no `target_layer_ids`; looked for `{NESTED}.target_layer_ids` "
                "and `target_layer_ids`.",
                mend="Add the tapped layers it was trained with; `fc.weight` has "
                f"(number of taps) x {hidden_size} columns.",
            )
        if (
            not isinstance(value, Sequence)
            or isinstance(value, str)
            or not value
            or any(isinstance(i, bool) or not isinstance(i, int) for i in value)
        ):
            raise DrafterError(
                f"config.json: target_layer_ids is {value!r}; a list of layer numbers is needed.",
                mend="Check config.json.",
            )
        return tuple(value)


def _refuse_other_layouts(config: Mapping[str, Any]) -> None:
    names = list(config.get("architectures") or [])
    if "speculators_model_type" in config:
        raise DrafterError(
            "this is a speculators checkpoint; this version reads z-lab's layouts.",
            mend="Convert it to z-lab's layout (its layer ids count from 1, z-lab's from 0).",
        )
    relatives = {"DFlash2DraftModel": "DFlash 2", "Qwen3DSparkModel": "DSpark"}
    for name in names:
        if name in relatives or "DSpark" in name:
            raise DrafterError(
                f"this is a {relatives.get(name, name)} drafter; this version replays DFlash.",
                mend="Point --drafter at a DFlash checkpoint (architectures: DFlashDraftModel).",
            )
    if config.get("sample_from_anchor") or config.get("shift_label"):
        raise DrafterError(
            "this drafter predicts one place further from each slot (sample_from_anchor / "
            "shift_label); this version replays DFlash, whose slot k is the token at its own "
            "place.",
            mend="Point --drafter at a DFlash checkpoint.",
        )


def _rope(config: Mapping[str, Any]) -> tuple[Rope, list[str]]:
    try:
        rope = read_rope(config)
    except DraftlabError as error:
        raise DrafterError(f"config.json: {error}", mend=error.mend) from error
    notes = []
    if rope.partial_rotary_factor != 1.0:
        notes.append(
            f"partial_rotary_factor {rope.partial_rotary_factor:g} is set: z-lab's model rotates "
            "the whole head and so does the replay, but engines that honour it will draft "
            "differently."
        )
    if rope.scaling.get("mrope_section"):
        notes.append("mrope_section is set (copied from the target?); text positions are 1-D here.")
    return rope, notes


def _layers(config: Mapping[str, Any], count: int) -> tuple[LayerAttention, ...]:
    kinds = config.get("layer_types") or ["full_attention"] * count
    if len(kinds) != count:
        raise DrafterError(
            f"config.json: layer_types has {len(kinds)} entries for {count} layers.",
            mend="Check config.json; one of the two is wrong.",
        )
    unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
    if unknown:
        raise DrafterError(
            f"config.json: layer_types has {', '.join(unknown)}; a drafter's layers are "
            "full_attention or sliding_attention.",
            mend="Check that this is a drafter's config and not its target's.",
        )
    window: Any = config.get("sliding_window")
    if "sliding_attention" in kinds and config.get("use_sliding_window") is False:
        raise DrafterError(
            "config.json has sliding layers and use_sliding_window false: z-lab's loader then "
            "drops the window and keeps the layers causal.",
            mend="Set use_sliding_window to true, or the layers to full_attention, as trained.",
        )
    if "sliding_attention" in kinds and not window:
        raise DrafterError(
            "config.json has sliding layers and no `sliding_window`.",
            mend="Add the window the drafter was trained with.",
        )
    override = config.get("is_causal")
    return tuple(
        LayerAttention(
            window=int(window) if kind == "sliding_attention" else None,
            causal=bool(override) if override is not None else kind == "sliding_attention",
        )
        for kind in kinds
    )
