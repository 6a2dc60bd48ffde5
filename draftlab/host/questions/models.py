"""Folders of models: sizes with links counted once, shards against the index, parsed configs."""

from __future__ import annotations

from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import ModelFolder, ModelRoot
from draftlab.host.questions.reading import CUT, readable
from draftlab.host.questions.weights import File, Small, model_folder
from draftlab.host.script import SECONDS, Section

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def models_of(section: Section) -> Fact[tuple[ModelRoot, ...]]:
    """One answer for each root: those that were asked, and the hub's cache where there is one."""
    return Known(value=tuple(_root(group) for group in section.groups("root")))


def drafters_of(models: Fact[tuple[ModelRoot, ...]]) -> Fact[tuple[str, ...]]:
    """Drafter folders below all roots; absence is said with where was looked."""
    if not isinstance(models, Known):
        return models
    open_roots = [root.asked for root in models.value if isinstance(root.folders, NotAnswered)]
    found = [
        f"{root.place.rstrip('/')}/{folder.folder}"
        for root in models.value
        if isinstance(root.folders, Known)
        for folder in root.folders.value
        if folder.kind == "drafter"
    ]
    if found:
        return Known(value=tuple(found))
    if open_roots:
        return NotAnswered(why=f"{', '.join(open_roots)} could not be listed")
    places = ", ".join(root.asked for root in models.value)
    return Absent(why=f"no DFlash drafter folder in {places or 'any folder: none was asked'}")


def _root(group: Section) -> ModelRoot:
    asked, place = group.text("root") or "", group.text("at") or ""
    return ModelRoot(asked=asked, place=place, folders=readable(lambda: _folders(group, place)))


def _folders(group: Section, place: str) -> Fact[tuple[ModelFolder, ...]]:
    if group.has("no-root"):
        return Absent(why="no such folder")
    if group.has("no-stat"):
        return NotAnswered(why="no find, or no stat with -c, there")
    if not group.has("read"):
        late = group.ended == "late"
        return NotAnswered(why=f"not listed in {SECONDS['models']} s" if late else CUT)
    prefix = f"{place}/"
    files = [_file(part.words, part.text, prefix) for part in group.parts if part.label == "file"]
    smalls = _smalls(group, prefix)
    homes = _homes({file.name for file in files})
    folders = [
        model_folder(home, [f for f in files if _home(f.name, homes) == home], smalls)
        for home in sorted(homes)
    ]
    if not folders:
        return Absent(why="no folder with a config.json or weights")
    return Known(value=tuple(folders))


def _file(words: tuple[str, ...], text: str, prefix: str) -> File:
    device, inode, size = (int(word) for word in words)
    return File(text.removesuffix("\n").removeprefix(prefix), (device, inode), size)


def _smalls(group: Section, prefix: str) -> dict[str, Small]:
    smalls = {}
    for small in group.groups("of"):
        name = small.parts[0].text.removeprefix(prefix)
        total = (small.text("index-bytes") or "").strip()
        index = small.text("index")
        smalls[name] = Small(
            config=small.text("config"),
            shards=None
            if index is None
            else tuple(line for line in index.splitlines() if line.endswith(_WEIGHTS)),
            index_bytes=int(total) if total.isdigit() else None,
            text=small.text("small") or "",
        )
    return smalls


def _homes(names: set[str]) -> set[str]:
    """The folders that are models: those with a config.json or weights of their own.

    `original/` belongs to the folder above it, and so do subfolders without a config.json below a
    folder that is a model (parts of one checkpoint).
    """
    with_config = {_parent(name) for name in names if _base(name) == "config.json"}
    with_weights = {_parent(name) for name in names if name.endswith(_WEIGHTS)}
    candidates = {folder for folder in with_config | with_weights if _base(folder) != "original"}
    return {
        folder
        for folder in candidates
        if folder in with_config or not (_above(folder) & with_config)
    }


def _home(name: str, homes: set[str]) -> str | None:
    """The nearest folder above a file that is a model."""
    folder = _parent(name)
    while folder not in homes and folder != ".":
        folder = _parent(folder)
    return folder if folder in homes else None


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "."


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _above(folder: str) -> set[str]:
    found = set()
    while folder != ".":
        folder = _parent(folder)
        found.add(folder)
    return found
