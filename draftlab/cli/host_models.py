"""Rows about model servers and model folders."""

from __future__ import annotations

import re
from collections.abc import Iterator

from draftlab.base.quantities import bytes_text
from draftlab.cli.host_parts import Row, unknown
from draftlab.host.fact import Absent, Known
from draftlab.host.facts import HostFacts, ModelFolder, ModelRoot, Server

_MOST = 8


def server_rows(facts: HostFacts) -> Iterator[Row]:
    """What listens and what it serves."""
    if not isinstance(facts.servers, Known):
        yield unknown("servers", facts.servers)
        return
    for server in facts.servers.value:
        yield _server(server)


def _server(server: Server) -> Row:
    engine = server.engine.value if isinstance(server.engine, Known) else "engine unknown"
    where = server.address.value if isinstance(server.address, Known) else "not listening (yet)"
    pid = f" (pid {server.pid.value})" if isinstance(server.pid, Known) else ""
    if not isinstance(server.models, Known):
        model = server.options.get("model")
        started = f" · started with {model}" if model else ""
        return Row("servers", f"{where} {engine}{pid}{started} · ? {server.models.why}", "unsure")
    served = []
    for one in server.models.value:
        length = one.max_model_len
        most = f" (to {length.value:,} tokens)" if isinstance(length, Known) else ""
        served.append(f"{one.id}{most}")
    return Row("servers", f"{where} {engine}{pid} · serves {', '.join(served) or 'no model'}")


def model_rows(facts: HostFacts) -> Iterator[Row]:
    """Each folder with what is wrong in it; that there is no drafter is said."""
    if not isinstance(facts.models, Known):
        yield unknown("models", facts.models)
        return
    for root in facts.models.value:
        yield from _root(root)
    if not isinstance(facts.drafters, Known):
        yield unknown("drafters", facts.drafters)


def _root(root: ModelRoot) -> Iterator[Row]:
    if not isinstance(root.folders, Known):
        yield unknown("models", root.folders, subject=root.asked)
        return
    folders = root.folders.value
    for folder in folders[:_MOST]:
        yield Row("models", " · ".join(_folder(root, folder)))
        for finding in folder.findings:
            yield Row("models", f"! {finding}", "warning")
    if len(folders) > _MOST:
        yield Row("models", f"{root.asked}: (+{len(folders) - _MOST} more)", "absent")


def _name(root: ModelRoot, folder: ModelFolder) -> str:
    """Where it is; a folder of the hub's cache by the name and revision it has there."""
    cached = re.fullmatch(r"models--(.+)/snapshots/([0-9a-f]+)", folder.folder)
    if cached:
        return f"{cached[1].replace('--', '/')} @ {cached[2][:8]}"
    return root.asked.rstrip("/") if folder.folder == "." else f"{root.asked}/{folder.folder}"


def _folder(root: ModelRoot, folder: ModelFolder) -> Iterator[str]:
    yield _name(root, folder)
    if folder.weight_files:
        files = (
            f"{folder.weight_files} {folder.weight_format} file{'s'[: folder.weight_files != 1]}"
        )
        if isinstance(folder.shards_in_index, Known):
            files = f"{folder.weight_files} of {folder.shards_in_index.value} shards"
        yield f"{bytes_text(folder.weights_bytes)}, {files}"
    if isinstance(folder.drafter, Known):
        drafter = folder.drafter.value
        taps = ", ".join(str(tap) for tap in drafter.target_layer_ids)
        yield f"drafter: block {drafter.block_size}, layers {taps}"
    elif isinstance(folder.target, Known):
        facts = folder.target.value
        yield f"{facts.num_layers} layers, hidden {facts.hidden_size}, vocab {facts.vocab_size:,}"
    else:
        fact = folder.drafter if folder.kind == "drafter" else folder.target
        yield fact.why if isinstance(fact, Absent) else f"? {fact.why}"
