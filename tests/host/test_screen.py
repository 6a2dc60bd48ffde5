"""What a person sees of a recorded machine; the README shows some of its lines."""

import io
import re
from pathlib import Path

import pytest
import recordings
from rich.console import Console

from draftlab.cli.hosts import host_tables

README = Path(__file__).parents[2] / "README.md"


def screen(name):
    console = Console(file=io.StringIO(), width=100)
    for part in host_tables([recordings.facts(name)]):
        console.print(part)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("name", recordings.RECORDED)
def test_a_machine_fits_one_screen(name):
    lines = screen(name)

    assert len(lines) <= 45
    assert all(len(line) <= 100 for line in lines)


def test_the_readme_shows_what_the_serving_host_looks_like():
    shown = re.search(r"```text\n(atlas  .*?)\n```", README.read_text(), re.DOTALL)[1]
    lines = screen("serving_host")

    assert [line for line in shown.split("\n") if line not in lines] == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("busybox_container", "90 GiB (container limit; the machine has 1008 GiB)"),
        ("busybox_container", "1.5 usable here"),
        ("unified_memory", "memory shared with the machine's memory"),
        ("hung_nvidia_smi", "? nvidia-smi gave no answer in 20 s"),
        ("hung_nvidia_smi", "! uv is /home/dan/.local/bin/uv, not on PATH for non-interactive"),
        ("conda_only", "! this torch will not see the GPU: the driver supports CUDA 12.4"),
        ("conda_only", "! this torch will not see the GPU: it is not a CUDA build"),
        ("wrapped_df", "! no files can be created: all its inodes are used"),
        ("wrapped_df", "! kept in memory: what is written there takes memory"),
        ("broken_models", "! 1 shard is missing: model-00007-of-00015.safetensors"),
        ("divided_gpu", "divided: 3g.40gb, 2g.20gb"),
        ("serving_host", "~/models/Qwen3.6-27B-DFlash: none: no such folder"),
        ("darwin", "? there is no /proc/meminfo"),
    ],
)
def test_what_matters_about_a_machine_is_said(name, line):
    assert line in " ".join(" ".join(screen(name)).split())
