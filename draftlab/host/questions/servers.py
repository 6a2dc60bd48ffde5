"""Model servers: what listens, which engine it is, what it says it serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from draftlab.base.quantities import one_line
from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import ServedModel, Server
from draftlab.host.script import Section

_MODULES = {
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "llama_cpp.server": "llama.cpp",
    "mlx_lm.server": "mlx",
    "llama-server": "llama.cpp",
    "text-generation-launcher": "text-generation-inference",
    "text-generation-router": "text-generation-inference",
    "trtllm-serve": "tensorrt-llm",
    "tritonserver": "triton",
    "koboldcpp": "koboldcpp",
    "koboldcpp.py": "koboldcpp",
}
"""Engines by the program or the Python module that is started."""
_SERVE = {"sglang", "vllm", "ollama", "transformers", "lmdeploy"}
"""Programs of which only `PROGRAM serve` is a server."""
_OPTIONS = {
    "model": ("--model-path", "--model", "-m"),
    "served_name": ("--served-model-name", "--alias", "-a"),
    "drafter": ("--speculative-draft-model-path", "--model-draft", "-md"),
    "speculation": ("--speculative-algorithm", "--spec-type"),
    "tensor_parallel": ("--tp", "--tp-size", "--tensor-parallel-size"),
    "context_length": ("--context-length", "--max-model-len", "-c", "--ctx-size"),
    "dtype": ("--dtype",),
}
"""What is kept of a command line. Everything else (keys, tokens, paths) is dropped here."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    engine: str
    arguments: list[str]
    """What runs, with its arguments; without the Python that runs it."""

    @property
    def port(self) -> str | None:
        return option(self.arguments, ("--port",))


def servers_of(section: Section) -> Fact[tuple[Server, ...]]:
    """Addresses that answered as model servers do, then processes that do not listen yet."""
    processes = [p for group in section.groups("pid") if (p := _process(group)) is not None]
    listening = dict(_listening(section.text("listening") or ""))
    servers, taken = [], set()
    for group in section.groups("asked"):
        address = group.text("asked") or ""
        process = _holder(processes, address, listening.get(address, ""))
        models = _models(group)
        if process is None and not isinstance(models, Known):
            continue  # something else listens on a port that model servers like
        if process is not None:
            taken.add(process.pid)
        servers.append(_server(Known(value=address), process, models))
    for process in processes:
        if process.pid not in taken and not _is_child(process, taken, processes):
            silent = NotAnswered(why="it does not listen")
            servers.append(_server(Absent(why="it does not listen (yet)"), process, silent))
    if not servers:
        return Absent(why="no model server listens or runs")
    return Known(value=tuple(servers))


def engine_of(arguments: list[str]) -> str | None:
    """The engine that a command line starts; None for all that only speaks of one.

    So `docker run ... sglang.launch_server` is none: its Python process is listed by itself.
    """
    started = _started(arguments)
    name = started[0].rpartition("/")[2] if started else ""
    if name in _SERVE:
        return name if started[1:2] == ["serve"] else None
    return _MODULES.get(name)


def _started(arguments: list[str]) -> list[str]:
    """What runs, with its arguments: behind `python ... -m` or `python ...` too."""
    if not arguments[0].rpartition("/")[2].startswith("python"):
        return arguments
    for i, word in enumerate(arguments[1:], start=1):
        if word == "-m":
            return arguments[i + 1 :]
        if not word.startswith("-"):
            return arguments[i:]
    return []


def option(arguments: list[str], names: Iterable[str]) -> str | None:
    """The value of the first of these options, as `--name value` or `--name=value`."""
    for i, word in enumerate(arguments):
        name, found, value = word.partition("=")
        if name in names:
            if found:
                return value
            if i + 1 < len(arguments) and not arguments[i + 1].startswith("-"):
                return arguments[i + 1]
    return None


def _process(group: Section) -> _Process | None:
    line = (group.text("cmdline") or "").rstrip("\x01")
    arguments, pid = line.split("\x01"), group.text("pid") or ""
    engine = engine_of(arguments)
    if engine is None or not pid.isdigit():
        return None
    return _Process(int(pid), engine, _started(arguments))


def _listening(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        address, _, who = line.partition(" ")
        yield address, who


def _holder(processes: list[_Process], address: str, who: str) -> _Process | None:
    """The process that listens: as the lister says, else the one whose --port it is."""
    port = address.rpartition(":")[2]
    for process in processes:
        if f"pid={process.pid}," in who or who.strip().startswith(f"{process.pid}/"):
            return process
    if who.strip() not in {"", "-"}:
        return None
    return next((process for process in processes if process.port == port), None)


def _is_child(process: _Process, taken: set[int], processes: list[_Process]) -> bool:
    """Whether it is a worker of a server that was told of: the same command line."""
    return any(other.pid in taken and other.arguments == process.arguments for other in processes)


def _server(
    address: Fact[str], process: _Process | None, models: Fact[tuple[ServedModel, ...]]
) -> Server:
    hidden = NotAnswered(why="its process belongs to another user")
    if process is None:
        return Server(address=address, engine=hidden, pid=hidden, options={}, models=models)
    found = {key: option(process.arguments, names) for key, names in _OPTIONS.items()}
    served = process.arguments[1:3]
    if found["model"] is None and served[:1] == ["serve"] and not served[-1].startswith("-"):
        found["model"] = served[-1] if len(served) == 2 else None
    return Server(
        address=address,
        engine=Known(value=process.engine),
        pid=Known(value=process.pid),
        options={key: one_line(value) for key, value in found.items() if value is not None},
        models=models,
    )


def _models(group: Section) -> Fact[tuple[ServedModel, ...]]:
    if group.has("no-client"):
        return NotAnswered(why="no curl, wget or nc there to ask with")
    status, reply = group.text("reply-status"), group.text("reply") or ""
    if status is None:
        return NotAnswered(why="the connection ended before its answer")
    body, code = _body(reply)
    if code in {"401", "403"}:
        return NotAnswered(why="it wants an API key")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        what = "gave no answer in 2 s" if not body.strip() else "does not answer as a model server"
        return NotAnswered(why=f"it {what}")
    rows = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        return NotAnswered(why="it does not answer as a model server")
    return Known(value=tuple(_served(row) for row in rows if isinstance(row, dict)))


def _body(reply: str) -> tuple[str, str]:
    """The body and, where curl or a raw answer told it, the HTTP status."""
    raw = re.match(r"HTTP/1\.\d (\d{3}).*?\r?\n\r?\n", reply, re.DOTALL)
    if raw:
        return reply[raw.end() :], raw[1]
    told = re.search(r"\n(\d{3})$", reply)
    return (reply[: told.start()], told[1]) if told else (reply, "")


def _served(row: dict[str, object]) -> ServedModel:
    root, length = row.get("root"), row.get("max_model_len")
    silent = NotAnswered(why="the server does not say")
    return ServedModel(
        id=one_line(str(row.get("id", ""))),
        root=Known(value=one_line(root)) if isinstance(root, str) else silent,
        max_model_len=Known(value=length) if type(length) is int else silent,
    )
