"""A TrainConfig from a YAML or TOML file and `section.key=value` changes to it."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from draftlab.base.errors import DraftlabError
from draftlab.base.quantities import one_line
from draftlab.train.config import TrainConfig


def read_recipe(path: Path | None, changes: Sequence[str] = ()) -> TrainConfig:
    """Read, change, check.

    Args:
        path: a .yaml, .yml or .toml file; None starts from the defaults.
        changes: such as `schedule.steps=500`; values are read as YAML.

    Raises:
        DraftlabError: the file cannot be read, a key is not known (with the nearest one that is),
            or a value is not what the key takes.
    """
    body = {} if path is None else _read(path)
    for change in changes:
        _apply(body, change)
    try:
        return TrainConfig.model_validate(body)
    except ValidationError as error:
        raise _explained(error) from error


def explained_fields(model: type[BaseModel] = TrainConfig, prefix: str = "") -> Iterator[str]:
    """A line for every key, with its default and what it means."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from explained_fields(inner, f"{prefix}{name}.")
            continue
        default = "must be set" if field.is_required() else f"default {field.default!r}"
        yield f"{prefix}{name}  ({default})\n    {one_line(field.description or '', at_most=400)}"


def _read(path: Path) -> dict[str, Any]:
    if path.suffix not in {".yaml", ".yml", ".toml"}:
        raise DraftlabError(
            f"{path} is neither YAML nor TOML by its name.", mend="Name it run.yaml or run.toml."
        )
    try:
        text = path.read_text(encoding="utf-8")
        body = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except FileNotFoundError as error:
        raise DraftlabError(f"no file {path}.", mend="Check --config.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, tomllib.TOMLDecodeError) as error:
        raise DraftlabError(
            f"{path} cannot be read: {one_line(str(error))}.", mend="Check the file."
        ) from error
    if not isinstance(body, dict):
        raise DraftlabError(f"{path} holds no sections.", mend="Start from a file in recipes/.")
    return body


def _apply(body: dict[str, Any], change: str) -> None:
    key, equals, value = change.partition("=")
    if not equals or not key:
        raise DraftlabError(
            f"{change!r} is not section.key=value.", mend="Such as schedule.steps=500."
        )
    *sections, last = key.split(".")
    for section in sections:
        inner = body.setdefault(section, {})
        if not isinstance(inner, dict):
            raise DraftlabError(f"{section} in {change!r} is not a section.", mend="See --explain.")
        body = inner
    try:
        body[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise DraftlabError(f"{change!r}: {one_line(str(error))}.", mend="Quote it.") from error


def _explained(error: ValidationError) -> DraftlabError:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(place, list(_keys(TrainConfig.model_fields)), n=1)
        hint = f"Did you mean {near[0]}?" if near else "draftlab train --explain lists all keys."
        return DraftlabError(f"there is no key {place!r}.", mend=hint)
    if first["type"] == "missing":
        return DraftlabError(f"{place} is not set.", mend=f"Set it: {place}=...")
    return DraftlabError(
        f"{place}: {first['msg']} (given: {one_line(repr(first['input']), at_most=60)}).",
        mend="draftlab train --explain says what each key takes.",
    )


def _keys(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, field in fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _keys(inner.model_fields, f"{prefix}{name}.")
        yield f"{prefix}{name}"
