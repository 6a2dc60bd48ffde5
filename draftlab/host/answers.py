"""The answer of one machine as a document: every question becomes a fact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftlab.base.records import Provenance
from draftlab.host.fact import Absent
from draftlab.host.facts import AskedDisk, HostFacts
from draftlab.host.questions.cpu import cpu_of
from draftlab.host.questions.deep import rates_of
from draftlab.host.questions.disks import disks_of
from draftlab.host.questions.gpus import gpus_of
from draftlab.host.questions.memory import memory_of
from draftlab.host.questions.models import drafters_of, models_of
from draftlab.host.questions.pythons import pythons_of
from draftlab.host.questions.reading import readable, unfinished
from draftlab.host.questions.scripts import scripts_of
from draftlab.host.questions.servers import servers_of
from draftlab.host.questions.system import system_of
from draftlab.host.questions.tools import tools_of
from draftlab.host.script import Section, Wish, sections_of

Parser = Callable[[Section], Any]

_IN_PIECES = ("models", "deep")
"""Their parsers say themselves which pieces of a cut answer are whole."""


def facts_of(host: str, output: bytes, marker: str, wish: Wish, *, seconds: float) -> HostFacts:
    """All facts that an answer holds, whole or cut short.

    Args:
        host: its name as given; `localhost` for the machine that asked.
        output: what the script printed, and whatever was printed before it.
        marker: of this script.
        wish: what was asked.
        seconds: how long it took.
    """
    sections = sections_of(output, marker)
    gpus = _fact(sections, "gpus", gpus_of)
    models = _fact(sections, "models", models_of)
    return HostFacts(
        host=host,
        asked_seconds=round(seconds, 3),
        system=_fact(sections, "system", system_of),
        memory=_fact(sections, "memory", memory_of),
        disks=_disks(sections, wish),
        cpu=_fact(sections, "cpu", cpu_of),
        gpus=gpus,
        pythons=_fact(sections, "pythons", lambda section: pythons_of(section, gpus)),
        tools=_fact(sections, "tools", tools_of),
        servers=_fact(sections, "servers", servers_of),
        scripts=_fact(sections, "scripts", scripts_of),
        models=models,
        drafters=drafters_of(models),
        rates=_fact(sections, "deep", rates_of)
        if wish.deep
        else Absent(why="not asked (--deep measures them)"),
        provenance=Provenance.now(),
    )


def _fact(sections: Mapping[str, Section], question: str, parser: Parser) -> Any:
    section = sections.get(question)
    why = unfinished(section, question)
    if section is None or (why is not None and question not in _IN_PIECES):
        return why
    return readable(lambda: parser(section))


def _disks(sections: Mapping[str, Section], wish: Wish) -> tuple[AskedDisk, ...]:
    return disks_of(sections.get("disks", Section((), "")), wish.paths)
