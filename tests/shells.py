"""The real script of the probe under real shells, as on a machine with some home and PATH."""

import os
import shutil
import subprocess

import pytest

from draftlab.host.answers import facts_of
from draftlab.host.script import probe_script

SHELLS = [
    pytest.param(command, id=" ".join(command), marks=pytest.mark.skipif(
        shutil.which(command[0]) is None, reason=f"no {command[0]} (make test-tools)"))
    for command in (["dash"], ["bash", "--posix"], ["busybox", "sh"])
]  # fmt: skip
MARKER = "draftlab-5eed"


def answers(command, wish, home, *, path=os.environ["PATH"], edit=lambda script: script):
    """Run the script as it would run on a machine with this home and PATH; its raw output."""
    script = edit(probe_script(MARKER, wish).decode(errors="surrogateescape"))
    environment = {"HOME": str(home), "PATH": path}
    done = subprocess.run(
        [shutil.which(command[0]), *command[1:], "-s"], check=False, cwd=home, env=environment,
        input=script.encode(errors="surrogateescape"), capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.stderr == b""
    assert done.returncode == 0
    return done.stdout


def facts(command, wish, home, **options):
    output = answers(command, wish, home, **options)
    return facts_of("gpu1", output, MARKER, wish, seconds=1.0)


def program(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def only(*questions):
    """Leave the other questions out."""

    def edit(script):
        head, body = script.split("\nmain() {\n")
        lines = [
            line for line in body.split("\n")
            if not line.startswith("ask ") or line.split()[1] in questions
        ]  # fmt: skip
        return head + "\nmain() {\n" + "\n".join(lines)

    return edit
