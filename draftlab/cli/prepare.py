"""`draftlab reference` and `draftlab capture`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from draftlab.base.errors import StoreError
from draftlab.base.progress import bar
from draftlab.base.quantities import bytes_text
from draftlab.cli.options import DeviceOption, DtypeOption, Numbers, TargetFolder, Threads, say

REFERENCE_EXAMPLE = (
    "Example: draftlab reference --prompts prompts.jsonl --target models/Qwen3-4B "
    "--max-new-tokens 128 --out work/ref"
)
CAPTURE_EXAMPLE = (
    "Example: draftlab capture work/ref --target models/Qwen3-4B "
    "--drafter models/Qwen3-4B-DFlash-b16 --out work/store"
)


def reference(
    *,
    prompts: Path,
    target: TargetFolder,
    max_new_tokens: int,
    out: Path,
    ignore_eos: bool = False,
    thinking: Literal["on", "off", "template"] = "template",
    batch_size: int = 16,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    threads: Threads = None,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Let a local target complete prompts greedily; keep the token ids.

    Parameters
    ----------
    prompts
        JSONL: {"prompt": ...}, {"messages": [...]} or {"input_ids": [...]}, with optional id,
        domain.
    max_new_tokens
        Tokens per completion at most.
    out
        Folder to write. Run the same command again to continue a stopped one.
    ignore_eos
        Go on past end-of-text tokens.
    thinking
        The chat template's thinking switch; `template` leaves its default.
    batch_size
        Prompts decoded together.
    json_output
        Print the record as JSON.
    """
    from draftlab.reference.prompts import read_prompts

    loaded = read_prompts(prompts)
    from draftlab.reference.generate import GreedySettings, generate_reference
    from draftlab.target.compute import Compute

    settings = GreedySettings(
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
        thinking=thinking,
        batch_size=batch_size,
    )
    compute = Compute.choose(device, dtype, threads=threads)
    compute.apply()
    say(f"reference: {len(loaded)} prompts, up to {max_new_tokens} tokens each; {compute}")
    made = generate_reference(loaded, target, out, settings, compute, track=bar)
    record = made.record
    if json_output:
        print(record.text(), end="")
        return
    print(
        f"{record.job.num_prompts} completions, {record.num_tokens:,} tokens, "
        f"{record.num_cut_off} cut off at {max_new_tokens} -> {out}"
    )


def capture(
    reference_folder: Annotated[Path, Parameter(name="reference", help="Folder of a reference.")],
    *,
    target: TargetFolder,
    out: Path,
    drafter: Path | None = None,
    layers: Numbers = (),
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    threads: Threads = None,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Run the target once over each completion; keep the hidden states that drafters read.

    Parameters
    ----------
    out
        Folder to write. Run the same command again to continue a stopped one.
    drafter
        Take the layers from this drafter's config.json.
    layers
        Layers to tap, counted from 0, e.g. 1,16,31,46,61; their outputs are kept.
    json_output
        Print the store's index as JSON.
    """
    from draftlab.reference.completions import Reference

    made = Reference.open(reference_folder)
    taps = _taps(drafter, layers)
    from draftlab.hidden.capture import capture as run_capture
    from draftlab.target.compute import Compute

    number = made.record.job.dtype if dtype == "auto" else dtype
    compute = Compute.choose(device, number, threads=threads)
    compute.apply()
    say(f"capture: {made.record.job.num_prompts} completions, layers {_joined(taps)}; {compute}")
    store = run_capture(made, target, taps, out, compute, track=bar)
    index = store.index
    if json_output:
        print(json.dumps({**json.loads(index.text()), "agreement": index.agreement}, indent=1))
        return
    size = sum(shard.num_bytes for shard in index.shards)
    print(
        f"{len(index.sequences)} sequences, layers {_joined(taps)}, {bytes_text(size)} -> {out}\n"
        f"{index.agreement:.2%} of the {index.num_tokens:,} reference tokens equal the "
        "target's argmax"
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
