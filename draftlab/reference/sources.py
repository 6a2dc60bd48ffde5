"""What `--prompts` may say, and what of it is asked.

    FILE                    prompts of one's own, JSON lines (prompts.py)
    builtin                 draftlab's own prompts, all domains (prompt_sets)
    builtin:code,maths      some of the domains
    humaneval               a set of the field, where an installed package or the hub has it
    gsm8k:test.jsonl.gz     a set of the field, from a file of its rows (benchmarks.py)

A name wins over a file of the same name; write ./builtin for the file.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from draftlab.base.errors import CompletionsError
from draftlab.base.quantities import listing
from draftlab.reference import prompt_sets
from draftlab.reference.benchmarks import SETS, load_benchmark
from draftlab.reference.prompt_sets import DOMAINS
from draftlab.reference.prompts import Prompt, PromptSource, Selection, read_prompts

BUILTIN = "builtin"
ZLAB_SEED = 42


@dataclass(frozen=True, slots=True)
class PromptList:
    """Prompts, and where they are from."""

    prompts: tuple[Prompt, ...]
    source: PromptSource


def load_prompts(wanted: str, limit: int | None = None) -> PromptList:
    """The prompts that a value of `--prompts` stands for.

    Args:
        wanted: as the module describes.
        limit: ask so many at most. Of one's own and of the built-in prompts they are evenly spread,
            so that every domain keeps its share. Of a set of the field they are the first after
            z-lab's shuffle (`benchmark.py`, `_select_dataset`): where the whole set is there in its
            usual order, the very prompts that z-lab's benchmark takes.

    Raises:
        CompletionsError: there is no such file, set or domain, or `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise CompletionsError(f"limit is {limit}.", mend="Pass --limit 1 or more.")
    name, colon, rest = wanted.partition(":")
    if name == BUILTIN:
        return _taken(_builtin(rest if colon else ""), limit)
    if name in SETS:
        return _taken(_benchmark(name, rest if colon else None), limit)
    path = Path(wanted)
    if not path.exists():
        raise CompletionsError(
            f"no prompt file {path}.",
            mend=f"Check --prompts: a JSONL file, {BUILTIN}, {BUILTIN}:code,maths, or one of "
            f"{', '.join(SETS)}.",
        )
    prompts = read_prompts(path)
    return _taken(_list(prompts, name=path.name, origin=path.name, licence="", form=""), limit)


def _builtin(wanted: str) -> PromptList:
    names = [name.strip() for name in wanted.split(",")] if wanted else list(DOMAINS)
    unknown = [name for name in names if name not in DOMAINS]
    if unknown:
        raise CompletionsError(
            f"there are no built-in prompts for {listing(unknown)!r}.",
            mend=f"Choose of {', '.join(DOMAINS)}: --prompts {BUILTIN}:code,maths.",
        )
    chosen = [name for name in DOMAINS if name in names]
    prompts: list[Prompt] = []
    for name in chosen:
        with as_file(files(prompt_sets) / f"{name}.jsonl") as path:
            prompts += read_prompts(path)
    shown = BUILTIN if len(chosen) == len(DOMAINS) else f"{BUILTIN}:{','.join(chosen)}"
    return _list(prompts, name=shown, origin="draftlab", licence="Apache-2.0", form="")


def _benchmark(name: str, path: str | None) -> PromptList:
    if path == "":
        raise CompletionsError(f"no file stands behind {name}:.", mend=f"Write {name}:FILE.")
    one = SETS[name]
    found = load_benchmark(one, None if path is None else Path(path))
    return _list(found.prompts, name=name, origin=found.origin, licence=one.licence, form=one.form)


def _list(
    prompts: Sequence[Prompt], *, name: str, origin: str, licence: str, form: str
) -> PromptList:
    source = PromptSource(
        name=name,
        origin=origin,
        licence=licence,
        form=form,
        num_available=len(prompts),
        selection="all",
    )
    return PromptList(tuple(prompts), source)


def _taken(found: PromptList, limit: int | None) -> PromptList:
    """At most `limit` of the prompts."""
    prompts, total = found.prompts, len(found.prompts)
    if limit is None or limit >= total:
        return found
    selection: Selection
    if found.source.name in SETS:
        order = list(range(total))
        random.Random(ZLAB_SEED).shuffle(order)
        chosen, selection = order[:limit], "shuffled with seed 42"
    else:
        chosen, selection = [i * total // limit for i in range(limit)], "evenly spread"
    source = found.source.model_copy(update={"selection": selection})
    return PromptList(tuple(prompts[i] for i in chosen), source)
