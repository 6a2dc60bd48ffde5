"""`draftlab probe`: what machines have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from draftlab.base.errors import Unfinished, Unreachable
from draftlab.base.progress import bar
from draftlab.base.quantities import listing

if TYPE_CHECKING:
    from draftlab.host.probe import Probe

EXAMPLE = (
    "Example: draftlab probe\n\n"
    "Example: draftlab probe gpu1 user@gpu2 --models /data/models --path /data --out work/hosts"
)

_Switch = Annotated[bool, Parameter(negative="")]
_Paths = Annotated[
    tuple[str, ...], Parameter(negative="", show_default=False, consume_multiple=False)
]


def probe(
    *hosts: Annotated[str, Parameter(allow_leading_hyphen=True)],
    path: _Paths = ("~",),
    models: _Paths = ("~/models",),
    hub_cache: bool = True,
    deep: _Switch = False,
    out: Path | None = None,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    ssh_config: Path | None = None,
) -> None:
    """Ask machines what they have: memory, disks, CPU, GPUs, pythons, servers, models.

    One round trip per machine over your own OpenSSH set-up, all machines at once; nothing is
    written there, and no python is needed there. No host key is ever accepted for you. Exit code 4:
    a machine was not reached; 6: some facts were not answered.

    Parameters
    ----------
    hosts
        Names as for ssh; none for this machine.
    path
        Measure the disk under exactly this path, on each machine; repeat it for more. By default
        the home folder.
    models
        Look for models below this folder, on each machine; repeat it for more. By default
        ~/models.
    hub_cache
        Look into the Hugging Face cache as well.
    deep
        Also measure disk, memory and matrix rates, in about ten seconds, beside whatever runs.
        (Of GPUs: matrix products and copies between them; not yet tried on one.)
    out
        Write a record of each machine into this folder, named after it.
    json_output
        Print everything as JSON.
    ssh_config
        Use this in place of your usual ssh configuration, as `ssh -F` does.
    """
    from draftlab.host.probe import file_name
    from draftlab.host.probe import probe as run_probe
    from draftlab.host.script import Wish

    wish = Wish(paths=path, models=models, hub_cache=hub_cache, deep=deep)
    found, errors = run_probe(hosts, wish, ssh_config=ssh_config, track=bar)
    if out is not None:
        for facts in found.hosts:
            facts.save(out / file_name(facts.host))
    if json_output:
        print(found.text(), end="")
    else:
        _print(found)
    _require_all(found, errors)


def _print(found: Probe) -> None:
    from rich.console import Console

    from draftlab.cli.hosts import host_tables, missing_lines

    console = Console()
    for part in host_tables(found.hosts):
        console.print(part)
    if found.hosts or len(found.not_reached) > 1:
        for part in missing_lines(found.not_reached):
            console.print(part)


def _require_all(found: Probe, errors: tuple[Unreachable, ...]) -> None:
    """Every machine reached, every fact answered; what there is has been shown before."""
    asked = len(errors) + len(found.hosts)
    if errors and asked == 1:
        raise errors[0]
    if errors:
        names = listing([one.host for one in found.not_reached])
        raise Unreachable(
            f"{len(errors)} of {asked} machines were not reached: {names}.",
            mend="What to do stands beside each; the others are reported.",
        )
    open_facts = [f"{f.host}: {', '.join(f.not_answered)}" for f in found.hosts if f.not_answered]
    if open_facts:
        raise Unfinished(
            f"not answered: {'; '.join(open_facts)}.",
            mend="The reasons stand beside them; everything else is whole.",
        )
