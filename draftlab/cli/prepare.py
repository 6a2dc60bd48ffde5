"""`draftlab capture`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from draftlab.base.errors import StoreError
from draftlab.base.progress import bar, silent
from draftlab.base.quantities import bytes_text
from draftlab.base.ranks import Ranks
from draftlab.cli.options import DeviceOption, DtypeOption, Numbers, TargetFolder, Threads, say
from draftlab.cli.states import (
    NO_STATE_FLAGS,
    StateFlags,
    capture_served,
    refuse_flags_of_the_other,
)

if TYPE_CHECKING:
    from draftlab.hidden.store import HiddenStore
    from draftlab.reference.completions import Reference

CAPTURE_EXAMPLE = (
    "Example: draftlab capture work/ref --target models/Qwen3-4B "
    "--drafter models/Qwen3-4B-DFlash-b16 --out work/store\n\n"
    "Example: torchrun --nproc-per-node 4 -m draftlab capture work/ref --target models/Qwen3-4B "
    "--drafter models/Qwen3-4B-DFlash-b16 --threads 8 --out work/store\n\n"
    "Example: draftlab capture work/ref --target models/Qwen3-4B --layers 1,9,17,25,33 "
    "--server http://localhost:30000 --out work/store"
)


def capture(
    reference_folder: Annotated[Path, Parameter(name="reference", help="Folder of a reference.")],
    *,
    target: TargetFolder,
    out: Path,
    drafter: Path | None = None,
    layers: Numbers = (),
    stream: bool | None = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    threads: Threads = None,
    server: str = "",
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    asking: StateFlags = NO_STATE_FLAGS,
) -> None:
    """Run the target once over each completion; keep the hidden states that drafters read.

    Under torchrun the completions are shared out, some 32 at a time, over processes and machines
    that see the same folders; the store has the same bytes as that of one process.

    With --server the states come from a server that was started to give them (SGLang's auxiliary
    hidden states, vLLM's extract_hidden_states). A few rows are then captured here too, to know
    for certain which layers they are of.

    Parameters
    ----------
    out
        Folder to write. Run the same command again to continue a stopped one.
    drafter
        Take the layers from this drafter's config.json.
    layers
        Layers to tap, counted from 0, e.g. 1,16,31,46,61; their outputs are kept.
    stream
        Read the target layer by layer, each layer once, instead of loading it whole; by default
        where it does not fit into memory.
    server
        Address of a server that serves the target and gives hidden states.
    json_output
        Print the store's index as JSON.
    """
    from draftlab.reference.completions import LocalTarget, Reference

    ranks = Ranks.read()
    made = Reference.open(reference_folder)
    taps = _taps(drafter, layers)
    if server or asking != NO_STATE_FLAGS:
        _require_alone(ranks)
        refuse_flags_of_the_other(server, dtype, stream)
        _show(
            capture_served(made, target, taps, out, asking.settings(server), device, threads),
            out,
            json_output=json_output,
        )
        return
    from draftlab.hidden.capture import carry_out, plan_capture
    from draftlab.hidden.together import Meeting
    from draftlab.target.compute import Compute, operations_per_second

    tell = say if ranks.leads else _unsaid
    made_by = made.record.job.made_by
    # A server does not say what it computes in; the choice is then this machine's.
    number = made_by.dtype if dtype == "auto" and isinstance(made_by, LocalTarget) else dtype
    compute, why = Compute.choose_for(target, device, number, threads=threads)
    compute.apply()
    for line in _told(made, taps, ranks, str(compute), why):
        tell(f"capture: {line}")
    with Meeting.join(ranks) as meeting:
        with meeting.lead_first("planned"):
            plan = plan_capture(made, target, taps, out, compute, stream=stream)
        if plan.finished is None and ranks.leads:
            rate = None if plan.skeleton is None else operations_per_second(compute)
            for line in plan.estimate.lines(rate):
                say(f"capture: {line}")
        store = carry_out(plan, track=bar if ranks.leads else silent, meeting=meeting)
    if ranks.leads:
        _show(store, out, json_output=json_output)


def _told(
    made: Reference, taps: tuple[int, ...], ranks: Ranks, compute: str, why: str
) -> Iterator[str]:
    """What is captured, how, and what cannot be known of it."""
    from draftlab.reference.completions import GivenText, Server

    yield f"{len(made.completions)} completions, layers {_joined(taps)}; {compute}"
    if why:
        yield why
    if ranks.size > 1:
        yield f"{ranks.size} processes; what is shown is the share of the first"
    made_by = made.record.job.made_by
    if isinstance(made_by, GivenText):
        yield "given text: whether the target would say it shows in the agreement alone"
    if isinstance(made_by, Server):
        yield (
            f"a server wrote this reference ({made_by.name} {made_by.version}, model "
            f"{made_by.model_id}): whether --target is that model shows in the agreement alone"
        )


def _require_alone(ranks: Ranks) -> None:
    if ranks.size > 1:
        raise StoreError(
            f"{ranks.size} processes would ask one server for the same states.",
            mend="Run one; --concurrency says how many rows it asks for at once.",
        )


def _unsaid(_line: str) -> None:
    """The leading process talks."""


def _show(store: HiddenStore, out: Path, *, json_output: bool) -> None:
    index = store.index
    if json_output:
        print(json.dumps({**json.loads(index.text()), "agreement": index.agreement}, indent=1))
        return
    size = sum(shard.num_bytes for shard in index.shards)
    taps = _joined(index.conditions.target_layer_ids)
    drawn = index.conditions.temperature
    meaning = f"; drawn at temperature {drawn:g}, so this is no check of the target"
    print(
        f"{len(index.sequences)} sequences, layers {taps}, {bytes_text(size)} -> {out}\n"
        f"{index.agreement:.2%} of the {index.num_tokens:,} reference tokens equal the "
        f"target's argmax{meaning if drawn else ''}"
    )


def _taps(drafter: Path | None, layers: tuple[int, ...]) -> tuple[int, ...]:
    from draftlab.drafter.config import DrafterConfig

    if (drafter is None) == (not layers):
        raise StoreError(
            "give either --drafter or --layers: which layers to tap is never guessed.",
            mend="Pass --drafter DIR, or --layers 1,16,31,46,61.",
        )
    return layers if drafter is None else DrafterConfig.from_folder(drafter).target_layer_ids


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
