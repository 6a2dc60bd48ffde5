"""Measured rates: the programs that measure run here, and what they print becomes facts.

The part of measure.py for GPUs is compiled and never run: it was written without one.
"""

import sys
from pathlib import Path

import pytest
from shells import MARKER, facts, only

from draftlab.host.fact import Absent, Known, NotAnswered
from draftlab.host.script import Wish, probe_script

DEEP = Wish(hub_cache=False, deep=True)


def deep_facts(home, *, edit=lambda script: script):
    def both(script):
        return edit(only("deep")(script))

    return facts(["sh"], DEEP, home, path="/usr/bin:/bin", edit=both).rates


def big_file(home):
    path = home / "models/Big one/model.safetensors"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(300 << 20)  # a hole: it takes no disk
    return path


def environment(home, site):
    """A virtual environment of `home` whose python is this one."""
    folder = home / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("version = 3.11.0\n")
    (folder / "lib/python3.11").mkdir(parents=True)
    (folder / "lib/python3.11/site-packages").symlink_to(site)
    (folder / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "bin/python").chmod(0o755)


@pytest.mark.slow
def test_rates_are_measured_with_the_torch_that_is_there(tmp_path):
    import torch  # noqa: PLC0415

    path = big_file(tmp_path)
    environment(tmp_path, Path(torch.__file__).parent.parent)
    rates = deep_facts(tmp_path).value
    measured = rates.computed.value

    assert rates.disk_read.value.file == str(path)
    assert rates.disk_read.value.bytes_per_second > 1e6
    assert rates.zero_fill_bytes_per_second.value > 1e8
    assert measured.tool.startswith(f"torch {torch.__version__}")
    assert measured.copy_bytes_per_second > 1e8
    assert set(measured.matrix) == {"float32", "bfloat16", "float16"}
    assert all(rate.flops_per_second > 1e7 for rate in measured.matrix.values())
    assert measured.gpus == () or torch.cuda.is_available()


@pytest.mark.slow
def test_numpy_measures_what_it_can_where_there_is_no_torch(tmp_path):
    import numpy  # noqa: PLC0415

    site = tmp_path / "site"
    site.mkdir()
    (site / "numpy").symlink_to(Path(numpy.__file__).parent)
    environment(tmp_path, site)

    def without_torch(script):
        return script.replace(
            "import importlib\n", 'import importlib, sys\nsys.modules["torch"] = None\n', 1
        )

    measured = deep_facts(tmp_path, edit=without_torch).value.computed.value
    assert measured.tool == f"numpy {numpy.__version__}"
    assert set(measured.matrix) == {"float32"}


def test_without_a_python_dd_alone_measures_and_says_so(tmp_path):
    rates = deep_facts(tmp_path, edit=lambda s: s.replace("    ask_pythons >/dev/null\n", "")).value

    assert isinstance(rates.zero_fill_bytes_per_second, Known)
    assert rates.disk_read == Absent(
        why="no file of 256 MiB or more in the model folders to read from"
    )
    assert rates.computed == Absent(why="no Python with torch or numpy there")


def test_a_measurement_that_fails_is_not_a_rate(tmp_path):
    environment(tmp_path, tmp_path)
    (tmp_path / "numpy").mkdir()
    rates = deep_facts(tmp_path, edit=lambda s: s.replace("import importlib\n", "1 / 0\n", 1)).value

    assert isinstance(rates.computed, NotAnswered)
    assert "failed to measure" in rates.computed.why


def test_rates_are_asked_only_on_request():
    assert b"ask deep" not in probe_script(MARKER, Wish())
    assert b"ask deep" in probe_script(MARKER, DEEP)
