"""Records reach the disk whole or not at all, and say what they are."""

import json
import os
import stat
from typing import ClassVar

import pytest

from draftlab.base.errors import DraftlabError
from draftlab.base.records import Document, sweep, whole_file, write_atomic


class Note(Document):
    """A document for these tests."""

    SCHEMA: ClassVar[str] = "draftlab.note/1"

    said: str


def test_a_document_reads_back_and_names_its_schema_first(tmp_path):
    Note(said="ünï").save(tmp_path / "n.json")
    assert Note.load(tmp_path / "n.json") == Note(said="ünï")
    assert list(json.loads((tmp_path / "n.json").read_text())) == ["schema", "said"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"schema": "draftlab.note/2", "said": "x"}', "this version reads 'draftlab.note/1'"),
        ('{"said": "x"}', "this version reads"),
        ('{"schema": "draftlab.note/1"}', "`said`"),
        ('{"schema": "draftlab.note/1", "said": "x", "more": 1}', "`more`"),
        ("[1]", "not a JSON object"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_document_of_another_kind_is_refused(tmp_path, body, said):
    (tmp_path / "n.json").write_text(body)
    with pytest.raises(DraftlabError, match=said):
        Note.load(tmp_path / "n.json")


def half_written(path):
    with whole_file(path) as part:
        part.write_bytes(b"half")
        part.write_bytes(b"%d" % (1 / 0))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    write_atomic(tmp_path / "f", b"old")
    with pytest.raises(ZeroDivisionError):
        half_written(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_file_gets_the_usual_mode_whatever_its_writer_gave_it(tmp_path):
    with whole_file(tmp_path / "f") as part:
        part.write_bytes(b"x")
        part.chmod(0o600)
    (tmp_path / "usual").write_bytes(b"x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("f", "usual")}
    assert len(modes) == 1


def test_what_a_dead_process_left_is_swept_and_a_live_ones_is_not(tmp_path):
    (tmp_path / f".f.{2**22 + 1}.part").write_bytes(b"dead")
    (tmp_path / f".f.{os.getpid()}.part").write_bytes(b"alive")
    sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [f".f.{os.getpid()}.part"]
