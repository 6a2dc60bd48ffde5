"""Probing over a real sshd: jump hosts, host keys, silence, and connections that die."""

import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
import sshd

from draftlab.base.errors import HostKeyChanged, HostKeyUnknown, LoginRefused, Unreachable
from draftlab.cli.main import code_of
from draftlab.host.fact import Absent, Known, NotAnswered
from draftlab.host.facts import HostFacts
from draftlab.host.probe import probe
from draftlab.host.script import Wish
from draftlab.host.ssh import Limits

QUICK = Wish(models=(), hub_cache=False)
SOON = Limits(connect=2, first_word=15, whole=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = sshd.Server(tmp_path_factory.mktemp("sshd") / "target")
    yield started
    started.stop()


@pytest.fixture
def known_hosts(tmp_path, server):
    path = tmp_path / "known_hosts"
    path.write_text(server.known())
    return path


@pytest.fixture
def config(tmp_path, server, known_hosts):
    return sshd.client_config(tmp_path / "config", known_hosts, server.alias("gpu1"))


def only_error(hosts, config, limits=SOON):
    found, errors = probe(hosts, QUICK, ssh_config=config, limits=limits)
    assert not found.hosts
    return errors[0]


def test_a_host_is_probed_over_one_connection(server, config):
    before = server.connections
    found, errors = probe(["gpu1"], ssh_config=config)

    assert errors == ()
    assert found.hosts[0].not_answered == ()
    assert found.hosts[0].memory.value.total_bytes > 0
    assert server.connections == before + 1


def test_the_target_is_reached_through_a_jump_host(tmp_path, server, known_hosts):
    jump = sshd.Server(tmp_path / "jump")
    try:
        known_hosts.write_text(server.known() + jump.known())
        config = sshd.client_config(
            tmp_path / "config", known_hosts, server.alias("gpu1", "ProxyJump jump"),
            jump.alias("jump"),
        )  # fmt: skip
        found, errors = probe(["gpu1"], QUICK, ssh_config=config)
        assert errors == ()
        assert isinstance(found.hosts[0].cpu, Known)
        assert jump.connections == 1
    finally:
        jump.stop()


def test_a_jump_host_with_an_unknown_key_is_named_and_not_accepted(tmp_path, server, known_hosts):
    """CASES G06: options for the target did not reach the jump host, and it asked a question.

    Even a configuration that accepts new keys does not make draftlab accept one.
    """
    jump = sshd.Server(tmp_path / "jump")
    try:
        config = sshd.client_config(
            tmp_path / "config", known_hosts, server.alias("gpu1", "ProxyJump jump"),
            jump.alias("jump", "StrictHostKeyChecking accept-new"),
        )  # fmt: skip
        before = known_hosts.read_text()
        error = only_error(["gpu1"], config)
        assert isinstance(error, HostKeyUnknown)
        assert f"[127.0.0.1]:{jump.port}" in str(error)
        assert known_hosts.read_text() == before
    finally:
        jump.stop()


def test_an_unknown_host_key_is_not_accepted_and_the_way_out_is_told(server, config, known_hosts):
    known_hosts.write_text("")
    config.write_text(f"LogLevel QUIET\n{config.read_text()}")  # would hide what ssh says
    error = only_error(["gpu1"], config)

    assert isinstance(error, HostKeyUnknown)
    assert error.exit_code == 4
    assert "ssh gpu1" in error.mend
    assert known_hosts.read_text() == ""


def test_a_changed_host_key_is_one_sentence_with_its_line(server, config, known_hosts, tmp_path):
    """CASES G07: a wall of text, or silence."""
    other = sshd.make_key(tmp_path / "other").with_suffix(".pub").read_text()
    filler = "".join(f"host{i} {other}" for i in range(46))
    text = filler + f"[127.0.0.1]:{server.port} {other}"
    known_hosts.write_text(text)
    error = only_error(["gpu1"], config)

    assert isinstance(error, HostKeyChanged)
    assert f"another key than line 47 of {known_hosts}" in str(error)
    assert "\n" not in str(error)
    assert f"ssh-keygen -f '{known_hosts}' -R '[127.0.0.1]:{server.port}'" in error.mend
    assert known_hosts.read_text() == text


def test_a_login_without_the_right_key_is_refused_and_asks_for_nothing(
    tmp_path, server, known_hosts
):
    wrong = sshd.make_key(tmp_path / "wrong")
    block = server.alias("gpu1").replace(str(server.user_key), str(wrong))
    config = sshd.client_config(tmp_path / "config", known_hosts, block)
    error = only_error(["gpu1"], config)

    assert isinstance(error, LoginRefused)
    assert "publickey" in str(error)


def test_a_server_that_takes_the_connection_and_says_nothing_costs_the_limit(tmp_path, known_hosts):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        block = f"Host gpu1\n  HostName 127.0.0.1\n  Port {silent.getsockname()[1]}\n"
        config = sshd.client_config(tmp_path / "config", known_hosts, block)
        began = time.monotonic()
        error = only_error(["gpu1"], config)

    assert type(error) is Unreachable
    assert "does not answer in time" in str(error)
    assert time.monotonic() - began < 10


def test_a_closed_port_and_an_unknown_name_say_so(tmp_path, known_hosts):
    block = f"Host gpu1\n  HostName 127.0.0.1\n  Port {sshd.free_port()}\n"
    config = sshd.client_config(tmp_path / "config", known_hosts, block)

    assert "Connection refused" in str(only_error(["gpu1"], config))
    assert "nowhere.invalid is not known" in str(only_error(["nowhere.invalid"], config))


def test_a_connection_that_dies_leaves_what_was_whole(tmp_path):
    """A stuck nvidia-smi gives the time to pull the cable."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\nsleep 30\n")
    (tools / "nvidia-smi").chmod(0o755)
    server = sshd.Server(tmp_path / "target", f"SetEnv PATH={tools}:/usr/bin:/bin")
    known = tmp_path / "known_hosts"
    known.write_text(server.known())
    config = sshd.client_config(tmp_path / "config", known, server.alias("gpu1"))
    cutter = threading.Thread(target=cut_when_running, args=(server, b"nvidia-smi"))
    cutter.start()
    try:
        found, errors = probe(["gpu1"], QUICK, ssh_config=config, limits=SOON)
    finally:
        cutter.join()
        server.stop()
    facts = found.hosts[0]
    assert errors == ()
    assert isinstance(facts.memory, Known)
    assert isinstance(facts.pythons, Known | Absent)
    assert isinstance(facts.gpus, NotAnswered)
    assert "the connection ended in the middle" in facts.gpus.why
    assert isinstance(facts.servers, NotAnswered)
    assert "before it was asked" in facts.servers.why


def cut_when_running(server, word):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        pids = sshd.descendants(server.process.pid)
        if any(word in command_line(pid) for pid in pids):
            break
        time.sleep(0.05)
    server.kill_sessions()


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_busybox_host_without_python_still_answers(tmp_path):
    """CASES G11."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox on this machine (make test-tools)")
    tools = tmp_path / "bin"
    tools.mkdir()
    subprocess.run([busybox, "--install", "-s", str(tools)], check=True, timeout=30)
    server = sshd.Server(
        tmp_path / "target", f"ForceCommand {tools}/sh -s", f"SetEnv PATH={tools} HOME={tmp_path}"
    )
    known = tmp_path / "known_hosts"
    known.write_text(server.known())
    config = sshd.client_config(tmp_path / "config", known, server.alias("box"))
    try:
        found, errors = probe(["box"], ssh_config=config)
    finally:
        server.stop()
    facts = found.hosts[0]
    assert errors == ()
    assert facts.not_answered == ()
    assert facts.system.value.path == (str(tools),)
    assert facts.disks[0].disk.value.free_bytes > 0
    assert (
        isinstance(facts.tools.value["git"], Absent) or not facts.tools.value["git"].value.on_path
    )


def test_a_login_that_runs_another_command_is_told_from_a_dead_host(tmp_path):
    server = sshd.Server(tmp_path / "target", "ForceCommand echo This account is not available")
    known = tmp_path / "known_hosts"
    known.write_text(server.known())
    config = sshd.client_config(tmp_path / "config", known, server.alias("gpu1"))
    try:
        error = only_error(["gpu1"], config)
    finally:
        server.stop()
    assert "`sh -s` was not run there (status 0); it said: This account is not available" in str(
        error
    )


def test_a_configuration_with_a_remote_command_and_forwards_does_not_get_in_the_way(
    tmp_path, server, known_hosts
):
    taken = f"LocalForward 127.0.0.1:{server.port} 127.0.0.1:1"
    block = server.alias("gpu1", "RemoteCommand tmux", "RequestTTY force", taken,
                         "ExitOnForwardFailure yes", "LogLevel QUIET")  # fmt: skip
    config = sshd.client_config(tmp_path / "config", known_hosts, block)
    found, errors = probe(["gpu1"], QUICK, ssh_config=config)

    assert errors == ()
    assert isinstance(found.hosts[0].cpu, Known)


@pytest.fixture
def sockets():
    """A short path: the name of a socket may have about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="draftlab-") as folder:
        yield Path(folder)


def test_a_running_master_of_the_user_is_used_and_none_is_started(
    tmp_path, server, known_hosts, sockets
):
    block = server.alias(
        "gpu1", "ControlMaster auto", f"ControlPath {sockets}/%C", "ControlPersist 60"
    )
    config = sshd.client_config(tmp_path / "config", known_hosts, block)
    ssh = ["ssh", "-F", str(config)]
    before = server.connections
    assert probe(["gpu1"], QUICK, ssh_config=config)[1] == ()
    assert list(sockets.iterdir()) == []
    subprocess.run([*ssh, "gpu1", "true"], check=True, timeout=20, stderr=subprocess.DEVNULL)
    try:
        for _ in range(2):
            assert probe(["gpu1"], QUICK, ssh_config=config)[1] == ()
        assert server.connections == before + 2
    finally:
        subprocess.run([*ssh, "-O", "exit", "gpu1"], check=True, timeout=20, capture_output=True)


def test_several_hosts_are_reported_and_the_missing_one_gives_code_4(
    tmp_path, config, server, known_hosts, capsys
):
    config.write_text(config.read_text() + server.alias("gpu2") + "Host off\n  HostName 127.0.0.1\n"
                      f"  Port {sshd.free_port()}\n")  # fmt: skip
    code = code_of(["probe", "gpu1", "off", "gpu2", "--ssh-config", str(config), "--no-hub-cache",
                    "--out", str(tmp_path / "hosts"), "--json"])  # fmt: skip
    shown = json.loads(capsys.readouterr().out)

    assert code == 4
    assert [facts["host"] for facts in shown["hosts"]] == ["gpu1", "gpu2"]
    assert shown["not_reached"][0]["host"] == "off"
    assert sorted(path.name for path in (tmp_path / "hosts").iterdir()) == [
        "gpu1.json",
        "gpu2.json",
    ]
    assert HostFacts.load(tmp_path / "hosts" / "gpu1.json").host == "gpu1"
