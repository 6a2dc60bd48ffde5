"""`draftlab probe` as a user runs it: exit codes, records, and what the screen says."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import sshd

from draftlab.cli.main import code_of
from draftlab.host.facts import HostFacts
from draftlab.host.probe import THIS_MACHINE


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "home").mkdir()

    def run_it(*arguments):
        code = code_of(["probe", *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run_it


def test_this_machine_is_shown_and_recorded(run, tmp_path):
    code, shown, said = run("--out", tmp_path / "hosts", "--path", tmp_path)
    facts = HostFacts.load(tmp_path / "hosts" / f"{THIS_MACHINE}.json")

    assert (code, said) == (0, "")
    for word in ("memory", "cpu", "disk", "gpu", "python", "tools", "servers", "models", "scripts"):
        assert f"\n{word} " in shown
    assert "no DFlash drafter folder in ~/models" in shown
    assert facts.disks[0].asked == str(tmp_path)
    assert facts.provenance.command


def test_json_holds_what_the_record_holds(run, tmp_path):
    code, shown, _ = run("--json", "--out", tmp_path)
    (host,) = json.loads(shown)["hosts"]
    record = json.loads((tmp_path / f"{THIS_MACHINE}.json").read_text())

    assert code == 0
    assert {"schema": "draftlab.host/1", **host} == record


def test_facts_that_were_not_answered_give_code_6_and_the_rest(run, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho Failed to initialize NVML >&2\nexit 18\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    code, shown, said = run()

    assert code == 6
    assert "? nvidia-smi: Failed to initialize NVML" in shown
    assert f"not answered: {THIS_MACHINE}: gpus." in said
    assert "available of" in shown


def test_a_relative_path_means_this_folder_on_this_machine(run, tmp_path, monkeypatch):
    (tmp_path / "a;b").mkdir()
    monkeypatch.chdir(tmp_path)
    _, shown, _ = run("--path", "a;b", "--json")

    assert json.loads(shown)["hosts"][0]["disks"][0]["disk"]["value"]["path"] == f"{tmp_path}/a;b"


@pytest.mark.parametrize("name", ["-oProxyCommand=id", "a b", "x;y", "u@-v"])
def test_a_name_that_is_none_is_refused_in_two_lines(run, name):
    code, shown, said = run("gpu1", name)

    assert (code, shown) == (1, "")
    assert [line.split(":")[0] for line in said.splitlines()] == ["error", "  fix"]


def test_a_single_machine_that_is_not_there_is_two_lines_and_code_4(run, tmp_path):
    config = tmp_path / "config"
    config.write_text(f"Host off\n  HostName 127.0.0.1\n  Port {sshd.free_port()}\n")
    code, shown, said = run("off", "--ssh-config", config)

    assert (code, shown) == (4, "")
    assert said.startswith("error: off: 127.0.0.1 port ")
    assert "\n  fix: " in said


def test_without_ssh_the_tool_is_named(run, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    code, _, said = run("gpu1")

    assert code == 5
    assert "the program `ssh`" in said


@pytest.mark.parametrize("text", [None, 'a"b'])
def test_an_ssh_configuration_that_cannot_be_included_is_refused(run, tmp_path, text):
    path = tmp_path / (text or "absent")
    if text:
        path.touch()
    code, _, said = run("gpu1", "--ssh-config", path)

    assert code == 1
    assert "is not a file that ssh can include" in said


def test_ctrl_c_ends_the_probe_and_what_it_started(tmp_path):
    config = tmp_path / "config"
    config.write_text(f"Host slow\n  ProxyCommand sleep 293 # {tmp_path}\n")
    command = [
        sys.executable,
        "-m",
        "draftlab.cli.main",
        "probe",
        "slow",
        "--ssh-config",
        str(config),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not sshd.descendants(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    started = sshd.descendants(process.pid)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]

    assert started
    assert process.returncode == 130
    assert "Traceback" not in said
    assert [pid for pid in started if is_running(pid)] == []


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
