"""The rows of an unfinished reference, so that a stopped run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from draftlab.base.errors import CompletionsError
from draftlab.base.records import Record, json_lines, sweep, write_atomic
from draftlab.reference.completions import PARTIAL_NAME, row_text

Row = TypeVar("Row", bound=Record)


class PartialRows(Generic[Row]):
    """The rows of an unfinished reference; appended as they come, dropped when finished.

    Its first line is the digest of the job, so rows of other prompts or settings are never taken
    over.
    """

    def __init__(self, folder: Path, job_digest: str, row: type[Row]) -> None:
        self._path = folder / PARTIAL_NAME
        self._header = json.dumps({"job": job_digest}) + "\n"
        self._row = row

    def start(self) -> tuple[Row, ...]:
        """Rows of the same job that are whole; opens the file for the rest.

        Raises:
            CompletionsError: the folder holds the rows of another job.
        """
        sweep(self._path.parent)
        if not self._path.is_file():
            write_atomic(self._path, self._header.encode())
            return ()
        lines = json_lines(self._path.read_text(encoding="utf-8", errors="replace"))
        if lines[0] + "\n" != self._header:
            raise CompletionsError(
                f"{self._path} was begun with other prompts, another target or other settings.",
                mend="Give another --out, or delete that file to start again.",
            )
        rows: list[Row] = []
        for line in lines[1:-1]:  # what no newline ends is a torn write
            try:
                rows.append(self._row.model_validate_json(line))
            except ValidationError:
                break  # so is this; what follows it is redone
        write_atomic(self._path, (self._header + "".join(map(row_text, rows))).encode())
        return tuple(rows)

    def append(self, rows: Sequence[Row]) -> None:
        """Add a batch of rows."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(map(row_text, rows)))
            file.flush()

    def drop(self) -> None:
        """Forget the partial file, once the whole is written."""
        self._path.unlink(missing_ok=True)
