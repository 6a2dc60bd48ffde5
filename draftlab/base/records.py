"""Typed records and how they reach the disk whole or not at all.

Every record on disk is JSON with `schema` (name/version) first. A reader refuses a name or a
version it does not know. Writing goes beside the final name, is synced, and is then renamed over
it, so no stop or full disk leaves a half-written file under a name that anything reads.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from draftlab import __version__
from draftlab.base.errors import DraftlabError

_HASH_CHUNK_BYTES = 1 << 22


class Record(BaseModel):
    """A frozen value with named, checked fields; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_follows(cls, values: Any) -> Any:
        """Computed fields are written for readers of the JSON; reading computes them again."""
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if key not in cls.model_computed_fields}


class Provenance(Record):
    """Where a file on disk came from."""

    draftlab: str
    """Package version that wrote it."""
    created_utc: str
    """When, ISO 8601, UTC."""
    command: tuple[str, ...]
    """The command line, as given."""

    @classmethod
    def now(cls) -> Self:
        """The provenance of what this process writes now."""
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(draftlab=__version__, created_utc=stamp, command=tuple(sys.argv))


class Document(Record):
    """A record that lives in a file of its own, under a schema name and version."""

    SCHEMA: ClassVar[str]
    INDENT: ClassVar[int | None] = 1
    """Spaces per level in the file; None where long lists of numbers would take a line each."""

    def save(self, path: Path) -> None:
        """Write atomically, `schema` first."""
        write_atomic(path, self.text().encode())

    def text(self) -> str:
        """The JSON text of this document; the same record gives the same bytes."""
        body = {"schema": self.SCHEMA, **self.model_dump(mode="json", by_alias=True)}
        separators = (",", ":") if self.INDENT is None else None
        return (
            json.dumps(body, indent=self.INDENT, separators=separators, ensure_ascii=False) + "\n"
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check.

        Raises:
            DraftlabError: no such file, not JSON, another schema or version, or a field amiss.
        """
        body = read_json(path)
        found = body.pop("schema", None)
        if found != cls.SCHEMA:
            raise DraftlabError(
                f"{path} holds {found!r}; this version reads {cls.SCHEMA!r}.",
                mend="Point at the right file, or write it again with this version.",
            )
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DraftlabError(
                f"{path}: field `{where}`: {first['msg']} ({error.error_count()} in all).",
                mend="Write the file again with the command that made it.",
            ) from error


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object from a file.

    Raises:
        DraftlabError: no such file, not JSON, or not an object.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DraftlabError(f"no file {path}.", mend="Check the path.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DraftlabError(
            f"{path} cannot be read as JSON: {error}.", mend="Check the file."
        ) from error
    if not isinstance(body, dict):
        raise DraftlabError(f"{path} is not a JSON object.", mend="Check the file.")
    return body


def json_lines(text: str) -> list[str]:
    """The lines of a JSONL text; the last one is what no newline has ended, often empty.

    Not `str.splitlines`: that also breaks at U+2028 and its like, which JSON strings may hold.
    """
    return text.split("\n")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; on success it is synced and renamed over `path`.

    If the body raises, the file beside is removed and `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        beside.chmod(_usual_mode())  # some writers make files that only their owner may read
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@functools.cache
def _usual_mode() -> int:
    """What a newly created file may have here. Reading the mask means setting it, so only once."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def sweep(folder: Path) -> None:
    """Remove what killed processes left beside their targets in `folder`."""
    for part in folder.glob(".*.part"):
        pid = part.name.split(".")[-2]
        if pid.isdigit() and not _is_running(int(pid)):
            part.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` with `data`, whole or not at all."""
    with whole_file(path) as beside:
        beside.write_bytes(data)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: object) -> str:
    """Hex SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
