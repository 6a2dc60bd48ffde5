"""One model folder from its files: what a loader reads, what is missing, what is there twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from draftlab.base.errors import DraftlabError
from draftlab.base.quantities import bytes_text, listing
from draftlab.drafter.config import NESTED, DrafterConfig
from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import ModelFolder
from draftlab.target.facts import TargetFacts

Format = Literal["safetensors", "pickle", "gguf", "none"]
R = TypeVar("R")

_CONFIG_BYTES = 65536
_FORMATS: tuple[tuple[Format, tuple[str, ...]], ...] = (
    ("safetensors", (".safetensors",)),
    ("gguf", (".gguf",)),
    ("pickle", (".bin", ".pt", ".pth")),
)
_POINTER = "version https://git-lfs.github.com/spec/"
_NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")


@dataclass(frozen=True, slots=True)
class File:
    """One file; two names of one file have one identity."""

    name: str
    """Below the root."""
    identity: tuple[int, int]
    size: int


@dataclass(frozen=True, slots=True)
class Small:
    """What was read of a small file."""

    config: str | None
    shards: tuple[str, ...] | None
    """Weight files that an index names."""
    index_bytes: int | None
    """Bytes of all tensors, by the index."""
    text: str


def model_folder(home: str, files: Sequence[File], smalls: Mapping[str, Small]) -> ModelFolder:
    """Everything about one folder; names in it are relative to `home`."""
    prefix = "" if home == "." else f"{home}/"
    own = {file.name.removeprefix(prefix): file for file in files}
    read = {name: smalls[file.name] for name, file in own.items() if file.name in smalls}
    chosen, weights, copies = _weights(own)
    pointers = tuple(n for n in weights if n in read and read[n].text.startswith(_POINTER))
    shards = _index(read, chosen)
    missing = () if shards is None else tuple(n for n in shards.shards or () if n not in own)
    kind, target, drafter = _configs(read.get("config.json"))
    weights_bytes, copies_bytes = _size(own, weights), _size(own, copies)
    findings = tuple(
        _findings(missing, pointers, _by_folder(copies), copies_bytes)
        + _short(shards, missing, pointers, weights_bytes)
        + ([] if weights else ["holds no weights"])
    )
    return ModelFolder(
        folder=home,
        kind=kind,
        files_bytes=_size(own, own),
        weights_bytes=weights_bytes,
        weight_format=chosen,
        weight_files=len(weights) - len(pointers),
        shards_in_index=Absent(why="no index")
        if shards is None
        else Known(value=len(shards.shards or ())),
        missing_shards=missing,
        pointer_files=pointers,
        copies=_by_folder(copies),
        copies_bytes=copies_bytes,
        findings=findings,
        target=target,
        drafter=drafter,
    )


def _weights(own: Mapping[str, File]) -> tuple[Format, list[str], list[str]]:
    """The format that a loader takes, its files, and the weights that it leaves alone."""
    direct = [n for n in own if "/" not in n and n not in _NOT_WEIGHTS]
    deeper = [n for n in own if "/" in n and not n.startswith("original/")]
    copies = [n for n in own if n.startswith("original/") and _format(n) != "none"]
    for names in (direct, deeper):
        for chosen, _ in _FORMATS:
            found = sorted(n for n in names if _format(n) == chosen)
            if found:
                rest = [n for n in direct if _format(n) not in {"none", chosen}]
                return chosen, found, sorted(copies + (rest if names is direct else []))
    return "none", [], sorted(copies)


def _format(name: str) -> Format:
    return next((kind for kind, ends in _FORMATS if name.endswith(ends)), "none")


def _size(own: Mapping[str, File], names: Iterable[str]) -> int:
    """Bytes; two names of one file count once."""
    return sum({own[name].identity: own[name].size for name in names}.values())


def _index(read: Mapping[str, Small], chosen: Format) -> Small | None:
    """The index of the format that is loaded."""
    ends = {"safetensors": ".safetensors.index.json", "pickle": ".bin.index.json"}.get(chosen)
    indices = [s for n, s in read.items() if "/" not in n and s.shards is not None]
    named = [s for n, s in read.items() if "/" not in n and ends and n.endswith(ends)]
    return next(iter(named or (indices if chosen == "none" else [])), None)


def _by_folder(copies: Sequence[str]) -> tuple[str, ...]:
    """`original/` for all that lies in it, other names as they are."""
    return tuple(sorted({"original/" if n.startswith("original/") else n for n in copies}))


def _findings(
    missing: Sequence[str], pointers: Sequence[str], copies: Sequence[str], copies_bytes: int
) -> list[str]:
    found = []
    if missing:
        noun = "shard is" if len(missing) == 1 else "shards are"
        found.append(f"{len(missing)} {noun} missing: {listing(missing)}")
    if pointers:
        noun = "is a Git LFS pointer" if len(pointers) == 1 else "are Git LFS pointers"
        found.append(f"{listing(pointers)} {noun}, not weights (git lfs pull)")
    if copies:
        found.append(f"{listing(copies)}: a second copy, {bytes_text(copies_bytes)}, not counted")
    return found


def _short(
    shards: Small | None, missing: Sequence[str], pointers: Sequence[str], weights_bytes: int
) -> list[str]:
    """A file that was cut: all shards are there and hold less than the index says."""
    if shards is None or shards.index_bytes is None or missing or pointers:
        return []
    if weights_bytes >= shards.index_bytes:
        return []
    return [
        f"the shards hold {weights_bytes:,} bytes, the index says {shards.index_bytes:,}: "
        "a file is cut short"
    ]


def _configs(
    small: Small | None,
) -> tuple[Literal["target", "drafter", "unknown"], Fact[TargetFacts], Fact[DrafterConfig]]:
    """What config.json says this is, by the rules that the other stages read it with."""
    if small is None or small.config is None:
        none = Absent(why="no config.json")
        return "unknown", none, none
    if len(small.config.encode(errors="surrogateescape")) >= _CONFIG_BYTES:
        long = NotAnswered(why=f"config.json is longer than {_CONFIG_BYTES:,} bytes")
        return "unknown", long, long
    try:
        config = json.loads(small.config)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        broken = NotAnswered(why="config.json is not a JSON object")
        return "unknown", broken, broken
    if _is_drafter(config):
        return "drafter", Absent(why="it is a drafter"), _read(DrafterConfig.from_config, config)
    target = _read(TargetFacts.from_config, config)
    kind: Literal["target", "unknown"] = "target" if isinstance(target, Known) else "unknown"
    return kind, target, Absent(why="it is no DFlash drafter")


def _is_drafter(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures")
    named = isinstance(names, list) and any("dflash" in str(name).lower() for name in names)
    return named or NESTED in config or config.get("speculators_model_type") == "dflash"


def _read(reader: Any, config: Mapping[str, Any]) -> Any:
    """A config read by another stage's rule, or its refusal."""
    try:
        return Known(value=reader(config))
    except DraftlabError as error:
        return NotAnswered(why=str(error))
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        # Values of kinds that a config never has; the rule is written for configs, not for noise.
        return NotAnswered(why=f"config.json cannot be read: {type(error).__name__}: {error}")
