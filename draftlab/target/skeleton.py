"""A target without its weights: transformers' own modules, filled layer by layer from the files.

The model is built on the meta device, where tensors have shapes and no memory. Buffers that no file
holds (rotary frequencies, embedding scales) are small: they are made at once and stay, and so is
what else the decoder has beside its layers (norms). Embedding tables and the head are read by rows.

Shape letters: R sequences, T positions, H hidden size, U distinct tokens, v rows of the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from draftlab.base.errors import TargetError
from draftlab.base.quantities import listing, one_line
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts
from draftlab.target.filling import Filler
from draftlab.target.head import Head, linear_head
from draftlab.target.loading import LoadedTarget, decoder_layers
from draftlab.target.ranges import ByteRange, byte_ranges, gather_rows, read_rows
from draftlab.target.tensors import TensorFiles

WHOLE_TABLE_BYTES = 1 << 25
"""An embedding table up to this size is kept; of a larger one, the rows of each pass are read."""
CHECKED_HEAD_ROWS = 256
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")

_auto_config: Any = AutoConfig
_auto_model: Any = AutoModelForCausalLM


class Skeleton:
    """A target on the meta device, and the files that fill it.

    Use: build with `open`, call `settle` once, then `layer` for each layer that is to run.
    """

    def __init__(
        self, model: Any, facts: TargetFacts, files: TensorFiles, compute: Compute
    ) -> None:
        self.target = LoadedTarget(model, facts, files.fingerprint(), decoder_layers(model, facts))
        self.files = files
        self.compute = compute
        self._ranges = byte_ranges(files)
        self._filler = Filler(model, compute.torch_dtype)
        names = {id(module): name for name, module in model.named_modules()}
        self._decoder = names[id(model.get_decoder())] + "."
        self._layers = names[id(self.target.layers)] + "."
        self._head = names[id(linear_head(model, facts))] + "."
        self._tables = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Embedding)
            and name.startswith(self._decoder)
            and not name.startswith(self._layers)
        ]
        self._is_tied = model.get_input_embeddings().weight is linear_head(model, facts).weight
        self._embedding = names[id(model.get_input_embeddings())] + "."
        self._destinations = self._filler.destinations(self._ranges)
        self._require_every_tensor()

    @classmethod
    def open(cls, folder: Path, compute: Compute) -> Skeleton:
        """Build the target in `folder` without reading its weights.

        Raises:
            TargetError: transformers does not know the architecture, the target is quantised, or
                the files do not hold every tensor that the text model needs.
        """
        facts = TargetFacts.from_folder(folder)
        files = TensorFiles.open(folder)
        try:
            config = _auto_config.from_pretrained(folder, local_files_only=True)
            with torch.device("meta"):
                model = _auto_model.from_config(config, dtype=compute.torch_dtype)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise TargetError(
                f"transformers cannot build {folder}: {one_line(str(error), at_most=300)}.",
                mend="Check config.json, and that the installed transformers knows this "
                "architecture.",
            ) from error
        if getattr(model.config, "quantization_config", None) is not None:
            raise TargetError(
                f"{folder} is quantised; layer by layer only plain weights can be read.",
                mend="Use an unquantised copy, or --no-stream.",
            )
        if getattr(model.config.get_text_config(), "num_kv_shared_layers", None):
            raise TargetError(
                f"{facts.architecture}: its last layers read the keys and values of earlier ones, "
                "so they cannot run one at a time.",
                mend="Use --no-stream on a machine that holds it.",
            )
        return cls(model.eval().requires_grad_(requires_grad=False), facts, files, compute)

    # What it weighs, before anything is read.

    def layer_ranges(self, layer: int) -> list[ByteRange]:
        """Where one layer's tensors lie."""
        return self._under(f"{self._layers}{layer}.")

    def layer_bytes(self, layer: int) -> int:
        """Memory that one layer takes."""
        return sum(t.nbytes for t in self.target.layers[layer].state_dict().values())

    def active_values(self, layer: int) -> int:
        """Parameters of one layer that a token meets: of experts, those that are chosen."""
        config = self.target.model.config.get_text_config()
        total = next((n for key in _EXPERT_COUNTS if (n := getattr(config, key, None))), 1)
        chosen = getattr(config, "num_experts_per_tok", None) or total
        return sum(
            t.numel() * chosen // total if ".experts." in f".{name}" else t.numel()
            for name, t in self.target.layers[layer].named_parameters()
        )

    def table_bytes(self, tokens_per_pass: int) -> int:
        """Memory of the embedding tables: whole, or the rows that a pass may ask for."""
        total = 0
        for name in self._tables:
            weight = self.target.model.get_submodule(name).weight
            rows = len(weight)
            kept = rows if weight.nbytes <= WHOLE_TABLE_BYTES else min(rows, tokens_per_pass)
            total += kept * weight.nbytes // rows
        return total

    @property
    def embedding_range(self) -> ByteRange:
        """Where the embedding of the tokens lies."""
        return self._table_range(self._embedding, self._head)

    @property
    def head_range(self) -> ByteRange:
        """Where the head's weights lie: the embedding's, where the two are tied."""
        return self._table_range(self._head, self._embedding)

    def rest_ranges(self) -> list[ByteRange]:
        """What the decoder has beside layers and tables."""
        apart = {f"{name}.weight" for name in self._tables}
        return [
            self._ranges[source]
            for source, place in self._destinations.items()
            if place.parameter.startswith(self._decoder)
            and not place.parameter.startswith(self._layers)
            and place.parameter not in apart
        ]

    # Filling it.

    def settle(self) -> Head:
        """Fill what stays (norms, buffers, small tables); return the head, to be read by piece."""
        model, device = self.target.model, self.compute.torch_device
        self._make_buffers(device)
        self._filler.fill(self.rest_ranges(), device)
        for name in self._tables:
            self._furnish(name, model.get_submodule(name))
        apart = (self._layers, *(f"{name}." for name in self._tables))
        decoder = {f"{self._decoder}{k}": t for k, t in model.get_decoder().state_dict().items()}
        self._require_full({k: t for k, t in decoder.items() if not k.startswith(apart)})
        return self._open_head(linear_head(model, self.target.facts))

    @contextmanager
    def layer(self, number: int) -> Iterator[nn.Module]:
        """One layer with its weights, which are dropped when the body ends."""
        module = self.target.layers[number]
        prefix = f"{self._layers}{number}."
        try:
            self._filler.fill(self.layer_ranges(number), self.compute.torch_device)
            self._require_full({prefix + k: t for k, t in module.state_dict().items()})
            yield module
        finally:
            _drop(module)

    def _furnish(self, name: str, table: Any) -> None:
        """Give an embedding its weights: whole if small, else the rows that each pass asks for."""
        where = self._table_of(name)
        dtype, device = self.compute.torch_dtype, self.compute.torch_device
        if table.weight.nbytes <= WHOLE_TABLE_BYTES:
            whole = read_rows(where, 0, where.shape[0], dtype)
            table.weight = nn.Parameter(whole.to(device, dtype), requires_grad=False)
            return

        def only_rows(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            rows_U, places_RT = torch.unique(inputs[0], return_inverse=True)
            weight_UH = gather_rows(where, rows_U.tolist()).to(device, dtype)
            module.weight = nn.Parameter(weight_UH, requires_grad=False)
            return (places_RT, *inputs[1:])

        table.padding_idx = None  # of use to gradients alone; may exceed U
        table.register_forward_pre_hook(only_rows)

    def _open_head(self, module: nn.Linear) -> Head:
        where = self.head_range
        dtype, device = self.compute.torch_dtype, self.compute.torch_device
        biases = self._sources(f"{self._head}bias")
        bias_V = None
        if module.bias is not None:
            bias_V = read_rows(biases[0], 0, where.shape[0], dtype).to(device, dtype)

        def rows(start: int, stop: int) -> tuple[Tensor, Tensor | None]:
            weight_vH = read_rows(where, start, stop, dtype).to(device, dtype)
            return weight_vH, None if bias_V is None else bias_V[start:stop]

        # A stretch of the head stays in the model, for `check_head` to run the model's own way.
        weight_vH, bias_v = rows(0, min(CHECKED_HEAD_ROWS, where.shape[0]))
        module.weight = nn.Parameter(weight_vH, requires_grad=False)
        if bias_v is not None:
            module.bias = nn.Parameter(bias_v, requires_grad=False)
        return Head.of(self.target, rows)

    def _make_buffers(self, device: torch.device) -> None:
        """Buffers that no file holds, by the rule of the class that owns them."""
        model = self.target.model
        owners = {name: m for name, m in model.named_modules() if hasattr(m, "_init_weights")}
        for name, module in model.named_modules():
            own = dict(module.named_buffers(recurse=False))
            unsaved = module._non_persistent_buffers_set & set(own)  # noqa: SLF001
            if not unsaved or not f"{name}.".startswith(self._decoder):
                continue
            for key in unsaved:
                empty = torch.empty_like(own[key], device=device)
                module.register_buffer(key, empty, persistent=False)
            above = max((n for n in owners if f"{name}.".startswith(f"{n}.") or not n), key=len)
            owners[above]._init_weights(module)  # noqa: SLF001

    # Finding tensors.

    def _under(self, prefix: str) -> list[ByteRange]:
        return [
            self._ranges[source]
            for source, place in self._destinations.items()
            if place.parameter.startswith(prefix)
        ]

    def _sources(self, parameter: str) -> list[ByteRange]:
        """Tensors that become this parameter as they are."""
        return [
            self._ranges[source]
            for source, place in self._destinations.items()
            if place.parameter == parameter and place.as_it_is
        ]

    def _table_of(self, name: str) -> ByteRange:
        is_embedding = f"{name}." == self._embedding
        return self.embedding_range if is_embedding else self._table_range(f"{name}.", "")

    def _table_range(self, prefix: str, tied_to: str) -> ByteRange:
        """The rows of an embedding or the head; of the other one, where they are tied."""
        found = self._sources(f"{prefix}weight")
        if not found and self._is_tied and tied_to:
            found = self._sources(f"{tied_to}weight")
        if len(found) != 1:
            raise TargetError(
                f"{len(found)} tensors of the files would be `{prefix}weight`.",
                mend="The checkpoint is incomplete or its config.json is of another model.",
            )
        return found[0]

    def _require_every_tensor(self) -> None:
        """Try the whole load on shapes alone, hours before a late layer would fail."""
        missing = self._filler.missing_after_all(self._ranges.values())
        if self._is_tied and len(missing & {f"{self._head}weight", f"{self._embedding}weight"}) < 2:
            missing -= {f"{self._head}weight", f"{self._embedding}weight"}
        needed = sorted(k for k in missing if k.startswith((self._decoder, self._head)))
        if needed:
            raise TargetError(
                f"{len(needed)} weights are missing: {listing(needed)}.",
                mend="The checkpoint is incomplete or its config.json is of another model.",
            )

    @staticmethod
    def _require_full(tensors: dict[str, Tensor]) -> None:
        empty = [name for name, tensor in tensors.items() if tensor.is_meta]
        if empty:
            raise TargetError(
                f"{len(empty)} weights are not in the files: {listing(empty)}.",
                mend="The checkpoint is incomplete or its config.json is of another model.",
            )


def _drop(module: nn.Module) -> None:
    """Give the memory of a module's weights back; buffers that no file holds stay."""
    for part in module.modules():
        for name, weight in part.named_parameters(recurse=False):
            empty = torch.empty_like(weight, device="meta")
            part.register_parameter(name, nn.Parameter(empty, requires_grad=False))
        for name, buffer in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set:  # noqa: SLF001
                part.register_buffer(name, torch.empty_like(buffer, device="meta"))
