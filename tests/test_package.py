"""What the package promises as a whole: small, light to import, and described truly."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

import draftlab

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STAGES = ("probe", "reference", "capture", "evaluate", "compare", "report", "train", "demo")
HEAVY = ("torch", "transformers", "numba")
LINES_PER_FILE = 400
REPORT_HEAVY_MODULES = f"""
import atexit, json, sys
def report():
    print(json.dumps([name for name in {HEAVY} if name in sys.modules]), file=sys.stderr)
atexit.register(report)
"""


def run_python(program, *arguments):
    """Run `program` in a fresh interpreter; return its output and the heavy modules it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT_HEAVY_MODULES + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


def run_cli(*arguments):
    program = "from draftlab.cli.main import run\nsys.argv[0] = 'draftlab'\nrun()"
    return run_python(program, *arguments)


def torch_free_modules():
    """The modules named in the import contract; a package stands for its files."""
    contract = next(
        contract
        for contract in PROJECT["tool"]["importlinter"]["contracts"]
        if contract["name"] == "Reading never loads torch"
    )
    for name in contract["source_modules"]:
        folder = ROOT / name.replace(".", "/")
        yield name
        yield from (f"{name}.{file.stem}" for file in sorted(folder.glob("[!_]*.py")))


def test_importing_the_package_loads_nothing_heavy():
    assert run_python("import draftlab")[1] == []


def test_the_modules_that_only_read_load_nothing_heavy():
    assert run_python(f"import {', '.join(torch_free_modules())}")[1] == []


def test_help_names_every_stage_and_loads_nothing_heavy():
    text, loaded = run_cli("--help")

    assert loaded == []
    assert [stage for stage in STAGES if stage not in text] == []


@pytest.mark.parametrize("stage", STAGES)
def test_help_of_a_stage_shows_an_example_and_loads_nothing_heavy(stage):
    text, loaded = run_cli(stage, "--help")

    assert loaded == []
    assert f"draftlab {stage}" in text.split("\n", 1)[1], "no example below the usage line"


def test_the_package_docstring_lists_the_stages_in_the_order_data_flows():
    listed = re.findall(r"^ {4}(\w+) +draftlab\.\w+ ", draftlab.__doc__, re.MULTILINE)

    assert tuple(listed) == STAGES


def test_the_readme_lists_the_stages_in_the_order_data_flows():
    readme = (ROOT / "README.md").read_text()

    assert tuple(re.findall(r"^\| `draftlab (\w+)", readme, re.MULTILINE)) == STAGES


def test_every_file_stays_under_400_lines():
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines())
        for file in (ROOT / "draftlab").rglob("*.py")
    }

    assert {file: lines for file, lines in lengths.items() if lines >= LINES_PER_FILE} == {}


def test_the_core_install_asks_for_none_of_the_heavy_packages():
    requirements = metadata("draftlab").get_all("Requires-Dist")
    core = [requirement for requirement in requirements if "extra ==" not in requirement]

    assert core
    assert [line for line in core if re.match(rf"({'|'.join(HEAVY)})\b", line)] == []


def test_the_extras_that_messages_and_make_name_exist():
    extras = set(metadata("draftlab").get_all("Provides-Extra"))
    assert extras == {"torch", "server", "recipes", "dev"}


def test_the_licence_is_apache_2():
    assert metadata("draftlab")["License-Expression"] == "Apache-2.0"
    heading = (ROOT / "LICENSE").read_text().split("TERMS AND CONDITIONS")[0].split()
    assert heading[:4] == ["Apache", "License", "Version", "2.0,"]


def test_type_information_is_shipped():
    assert (Path(draftlab.__file__).parent / "py.typed").exists()
