"""The real script under the shells that are here: hostile names, stuck programs, found facts."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from threading import Event

import pytest
import sshd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shells import MARKER, SHELLS, answers, facts, only, program

import draftlab.host
from draftlab.host.answers import facts_of
from draftlab.host.fact import Absent, Known
from draftlab.host.script import Section, Wish, marks, quoted, sections_of
from draftlab.host.ssh import Limits, converse

ANY_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30)
EVIL = st.sampled_from(
    ["$(touch CANARY)", "`touch CANARY`", "; touch CANARY;", "'", '"', "\n", "\\",
     "&& touch CANARY #", "| touch CANARY", "*", "~", "-rf", " ", "\t", "$HOME", "${IFS}", "!!",
     "\ndraftlab-0000 end disks 0\n", "%s", "\r", "é", "\x1b[31m", "<(touch X)", "#", "=", "--"]
)  # fmt: skip
HOSTILE = st.lists(st.one_of(EVIL, ANY_TEXT), min_size=1, max_size=4).map("".join)


@pytest.mark.parametrize("command", SHELLS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(HOSTILE, min_size=60, max_size=60))
def test_a_quoted_word_is_that_word_to_every_shell(command, words, tmp_path):
    """60 words an example: 900 cases for each shell."""
    lines = "".join(f"printf '%s\\000' {quoted(word)}\n" for word in words)
    done = subprocess.run([*command, "-s"], input=lines.encode(), capture_output=True, timeout=30,
                          cwd=tmp_path, check=True)  # fmt: skip

    assert done.stdout.decode().split("\0")[:-1] == words
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", SHELLS)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(names=st.lists(HOSTILE, min_size=12, max_size=12))
def test_hostile_folders_are_measured_and_run_nothing(command, names, tmp_path_factory):
    """CASES G08. Half of the folders exist; each is asked as it is and below `~`."""
    home = tmp_path_factory.mktemp("home")
    wanted = [usable(name) for name in names]
    for name in wanted[::2]:
        (home / name).mkdir(exist_ok=True)
    asked = [f"~/{name}" for name in wanted] + [str(home / name) for name in wanted]
    wish = Wish(paths=tuple(asked), models=tuple(asked), hub_cache=False)
    found = facts(command, wish, home, edit=only("disks", "models"))

    for place, answer in zip(asked, found.disks, strict=True):
        path = str(home) + place[1:] if place.startswith("~") else place
        assert answer.asked == place
        assert answer.disk.value.path == path
        assert answer.disk.value.exists == Path(path).exists()
    for place, root in zip(asked, found.models.value, strict=True):
        assert root.asked == place
        assert isinstance(root.folders, Absent)
    assert not any(name == "CANARY" for _, _, names in os.walk(home) for name in names)


def usable(name):
    """A name that a folder can have."""
    shown = name.replace("/", "_").encode()[:200].decode(errors="ignore")
    return f"{shown}_" if shown in {"", ".", ".."} else shown


@pytest.mark.parametrize("command", SHELLS)
def test_every_question_is_answered_here(command, tmp_path):
    found = facts(command, Wish(), tmp_path)

    assert found.not_answered == ()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found.memory.value.total_bytes == pages
    assert found.cpu.value.logical_cpus == os.cpu_count()
    assert found.cpu.value.allowed_cpus.value == len(os.sched_getaffinity(0))
    disk = os.statvfs(tmp_path)
    assert found.disks[0].disk.value.total_bytes == disk.f_blocks * disk.f_frsize
    assert found.system.value.home == str(tmp_path)


@pytest.mark.parametrize("command", SHELLS)
def test_a_stuck_nvidia_smi_costs_its_limit_and_is_not_left_behind(command, tmp_path):
    """CASES G03, with a limit of 1 s in place of 20."""
    program(tmp_path / "bin", "nvidia-smi", "sleep 297")
    began = time.monotonic()
    found = facts(
        command, Wish(models=(), hub_cache=False), tmp_path,
        path=f"{tmp_path}/bin:{os.environ['PATH']}",
        edit=lambda script: script.replace("bounded 20 ", "bounded 1 "),
    )  # fmt: skip

    assert found.not_answered == ("gpus",)
    assert found.gpus.why == "nvidia-smi gave no answer in 20 s"
    assert isinstance(found.servers, Known | Absent)
    assert time.monotonic() - began < 25
    deadline = time.monotonic() + 10
    while running("sleep\x00297") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running("sleep\x00297")


@pytest.mark.parametrize("command", SHELLS)
def test_the_script_goes_on_beside_what_cannot_be_killed(command, tmp_path):
    """A process inside a stuck driver dies of no signal; here kill_tree is taken away."""

    def edit(script):
        script = script.replace("trap 'late=1' USR1", "trap 'late=1' USR1\nkill_tree() { :; }")
        script = script.replace("ask_memory() {", "ask_memory() {\nsleep 4")
        return script.replace("ask memory 10", "ask memory 1")

    began = time.monotonic()
    found = facts(command, Wish(models=(), hub_cache=False), tmp_path, edit=edit)
    assert found.not_answered == ("memory",)
    assert found.memory.why == "no answer in 10 s"
    assert time.monotonic() - began < 25


def running(words):
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if words.encode() in (entry / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


@pytest.mark.parametrize("command", SHELLS)
def test_uv_off_path_and_pythons_with_their_torch_are_found(command, tmp_path):
    """CASES G05, G10; nothing is imported: `version.py` would say so."""
    program(tmp_path / ".local/bin", "uv", "echo uv 9.9.9")
    site = tmp_path / "work/.venv/lib/python3.13/site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "transformers-5.24.0.dist-info").mkdir()
    (site / "torch/version.py").write_text(
        f"open({str(tmp_path / 'CANARY')!r}, 'w')\n__version__ = '2.13.0+cu130'\n"
        "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None"
    )
    (tmp_path / "work/.venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.13.1\n")
    env = tmp_path / "miniconda3/envs/a b"
    (env / "conda-meta").mkdir(parents=True)
    (env / "conda-meta/python-3.11.9-h9_0.json").touch()
    found = facts(command, Wish(models=(), hub_cache=False), tmp_path)

    uv = found.tools.value["uv"].value
    assert (uv.file, uv.on_path, uv.version.value) == (f"{tmp_path}/.local/bin/uv", False, "9.9.9")
    by_file = {python.file: python for python in found.pythons.value}
    venv = by_file[f"{tmp_path}/work/.venv"]
    assert (venv.version.value, venv.torch.value.version) == ("3.13.1", "2.13.0+cu130")
    assert venv.packages == {"transformers": "5.24.0"}
    assert by_file[str(env)].version.value == "3.11.9"
    assert not (tmp_path / "CANARY").exists()


@pytest.mark.parametrize("command", SHELLS)
def test_model_folders_are_read_as_they_lie_on_disk(command, tmp_path):
    """D-21 and the hub's links, on real files."""
    broken = tmp_path / "models/Broken one"
    (broken / "original").mkdir(parents=True)
    names = [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    (broken / names[0]).write_bytes(b"\0" * 5000)
    (broken / names[2]).write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n")
    (broken / "original/consolidated.00.pth").write_bytes(b"\0" * 7000)
    index = {
        "metadata": {"total_size": 14000},
        "weight_map": {f"w{i}": n for i, n in enumerate(names)},
    }
    for indent in (None, 2):
        (broken / "model.safetensors.index.json").write_text(json.dumps(index, indent=indent))
        check_broken(facts(command, Wish(hub_cache=False), tmp_path).models.value[0])
    hub = tmp_path / ".cache/huggingface/hub/models--a--b"
    (hub / "blobs").mkdir(parents=True)
    (hub / "blobs/0123").write_bytes(b"\0" * 3000)
    for revision in ("aaaa", "bbbb"):
        (hub / "snapshots" / revision).mkdir(parents=True)
        for name in ("model.safetensors", "again.safetensors"):
            (hub / "snapshots" / revision / name).symlink_to("../../blobs/0123")
    cache = facts(command, Wish(), tmp_path).models.value[1].folders.value
    assert [folder.files_bytes for folder in cache] == [3000, 3000]


def check_broken(root):
    (folder,) = root.folders.value
    assert folder.folder == "Broken one"
    assert folder.missing_shards == ("model-00002-of-00003.safetensors",)
    assert folder.pointer_files == ("model-00003-of-00003.safetensors",)
    assert folder.copies == ("original/",)
    assert folder.shards_in_index.value == 3
    assert len(folder.findings) == 3


SERVER = """\
import http.server, json, sys


class Models(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": "tiny", "max_model_len": 512}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Models)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("client", ["curl", "wget", "busybox wget", "nc"])
def test_a_server_is_known_by_its_process_and_asked_what_it_serves(client, tmp_path):
    """With each program that may be there to ask with; its key is in no record."""
    missing = [name for name in ("ss", client.split()[0]) if shutil.which(name) is None]
    if missing and client != "nc":
        pytest.skip(f"no {missing[0]} on this machine")
    busybox = shutil.which("busybox")
    if busybox is None and client in {"busybox wget", "nc"}:
        pytest.skip("no busybox on this machine (make test-tools)")
    port = sshd.free_port()
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/launch_server.py").write_text(SERVER)
    process = subprocess.Popen(
        [sys.executable, "-m", "sglang.launch_server", "--model-path", "/m/Tiny", "--port",
         str(port), "--api-key", "sk-secret", "--speculative-algorithm=DFLASH"],
        cwd=tmp_path, env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert process.stdout.readline() == b"ready\n"
        output = answers(["sh"], Wish(models=(), hub_cache=False), tmp_path,
                         path=path_with(tmp_path / "bin", client, busybox))  # fmt: skip
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    found = facts_of("gpu1", output, MARKER, Wish(models=(), hub_cache=False), seconds=1.0)
    server = next(s for s in found.servers.value if s.pid == Known(value=process.pid))
    assert server.engine.value == "sglang"
    assert server.address.value == f"127.0.0.1:{port}"
    assert [(m.id, m.max_model_len.value) for m in server.models.value] == [("tiny", 512)]
    assert server.options == {"model": "/m/Tiny", "speculation": "DFLASH"}
    assert "sk-secret" not in found.text()


def path_with(folder, client, busybox):
    """A PATH with the usual programs but only this client."""
    folder.mkdir()
    usual = ["cat", "sed", "grep", "sort", "head", "tr", "readlink", "sleep", "uname", "id", "ss",
             "df", "find", "stat", "rm", "sh"]  # fmt: skip
    for name in usual:
        (folder / name).symlink_to(shutil.which(name))
    name = client.split()[-1]
    (folder / name).symlink_to(busybox if client in {"busybox wget", "nc"} else shutil.which(name))
    return str(folder)


def test_a_marker_in_a_file_is_no_part_of_the_answer_unless_it_is_known():
    imitated = b"x\ndraftlab-other begin memory\n"
    output = imitated + b"\ndraftlab-5eed begin memory\ny\n\ndraftlab-5eed end memory 0\n"
    assert list(sections_of(output, MARKER)) == ["memory"]
    assert sections_of(output, MARKER)["memory"] == Section((), "0")


def test_a_conversation_that_never_ends_is_ended_from_here():
    """Endless output stops at its size; silence after the first word at the whole limit."""
    first, last = marks(MARKER)
    limits = Limits(connect=1, first_word=1, whole=2)
    silent = converse(
        ["sh", "-s"], b"sleep 60", first=first, last=last, limits=limits, stop=Event()
    )
    stuck = converse(["sh", "-s"], f"printf '\\n{MARKER} hello\\n'; sleep 60".encode(),
                     first=first, last=last, limits=limits, stop=Event())  # fmt: skip
    endless = converse(["sh", "-s"], f"printf '\\n{MARKER} hello\\n'; cat /dev/zero".encode(),
                       first=first, last=last, limits=Limits(whole=60), stop=Event())  # fmt: skip

    assert (silent.limit, stuck.limit, endless.limit) == ("first word", "whole", "size")
    assert silent.seconds < 5


def test_another_thread_can_stop_a_conversation():
    stop = Event()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    first, last = marks(MARKER)
    said = converse(["sh", "-s"], b"sleep 60", first=first, last=last, limits=Limits(), stop=stop)
    timer.join()
    assert said.limit == "stopped"
    assert said.seconds < 5


@pytest.mark.parametrize("command", SHELLS)
def test_what_a_program_says_is_not_mixed_with_what_its_guard_says(command, tmp_path):
    """A guard that is sent home before it has set its trap made some shells say `Terminated`."""
    frame = Path(draftlab.host.__file__).with_name("questions") / "frame.sh"
    defined = frame.read_text().split("kill_tree()")[1].split("# Unlike in `bounded`")[0]
    times = 250
    script = f"""kill_tree(){defined}
i=0
while [ $i -lt {times} ]; do
    i=$((i + 1))
    bounded 5 sh -c 'echo bad >&2; exit 18' 2>&1
done
exit 0
"""
    done = subprocess.run([*command, "-s"], input=script, capture_output=True, text=True,
                          timeout=120, cwd=tmp_path, check=True)  # fmt: skip

    assert done.stdout.splitlines() == ["bad"] * times
    assert done.stderr == ""
