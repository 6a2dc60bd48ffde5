"""What a capture will take: bytes to read, disk, memory, time. Arithmetic alone; no door is opened.

A store is large: every position keeps taps x hidden values. 10,000 texts of 2,048 tokens under a
target of hidden size 5,120 with 5 taps in bfloat16 are 1,048.6 GB. So it is said before starting,
and refused when the disk cannot hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from draftlab.base.errors import StoreError
from draftlab.base.quantities import bytes_text, seconds_text
from draftlab.base.records import Record

TOKEN_BYTES = 4
JUDGED_BYTES = 12
"""Of each completion token: argmax, log-probability, margin."""
VERDICT_BYTES = 20
"""Of each completion token while the head is read: best, second, argmax, total, said."""


class Shape(Record):
    """What decides how many bytes one position takes."""

    hidden_size: int
    num_taps: int
    value_bytes: int

    def taps_bytes(self, positions: int) -> int:
        """Tapped states of so many positions."""
        return positions * self.num_taps * self.hidden_size * self.value_bytes

    def states_bytes(self, positions: int) -> int:
        """States between two layers."""
        return positions * self.hidden_size * self.value_bytes

    def sequence_bytes(self, prompt: int, completion: int) -> int:
        """One sequence in a store: its states and what is kept of each token."""
        return (
            self.taps_bytes(prompt + completion - 1)
            + TOKEN_BYTES * (prompt + completion)
            + JUDGED_BYTES * completion
        )


class StreamNeeds(Record):
    """What reading a target layer by layer takes beside the store."""

    why: str
    num_layers: int
    layers_done: int
    """By an earlier run; what follows is for the rest."""
    read_bytes: int
    """Of weights, each once: layers, norms, head, and the embedding rows that occur."""
    layer_bytes: int
    """Memory of the largest layer, in the number type that is computed in."""
    buffer_bytes: int
    """Memory of everything else: one pass, embedding rows, a piece of the head and its logits."""
    held_bytes: int
    """Memory for states between layers; what does not fit is read back from the scratch files."""
    scratch_bytes: int
    """Disk for states between layers: those that are read and those that are written."""
    operations: float
    """Floating-point operations of all layers and the head, attention scores left out."""


class Estimate(Record):
    """What a capture needs and what there is."""

    place: str
    is_memory_backed: bool
    """Whether that place takes memory instead of disk."""
    num_sequences: int
    num_positions: int
    store_bytes: int
    there_bytes: int
    """Of store and scratch that an earlier run has written."""
    free_bytes: int
    stream: StreamNeeds | None

    @property
    def disk_bytes(self) -> int:
        """Still to be written at the peak."""
        scratch = 0 if self.stream is None else self.stream.scratch_bytes
        return max(0, self.store_bytes + scratch - self.there_bytes)

    def lines(self, operations_per_second: float | None = None) -> list[str]:
        """For the person who waits."""
        store = f"store {size_text(self.store_bytes)}"
        free = f"{size_text(self.free_bytes)} free at {self.place}"
        if self.is_memory_backed:
            free += ", which lies in memory and not on a disk"
        if self.stream is None:
            return [f"{store}; {free}"]
        needs = self.stream
        memory = needs.layer_bytes + needs.buffer_bytes
        lines = [
            f"layer by layer, {needs.why}{_continued(needs)}",
            f"reads {size_text(needs.read_bytes)} of weights once for all {self.num_positions:,} "
            f"positions; memory up to {bytes_text(memory)} (largest layer "
            f"{bytes_text(needs.layer_bytes)}, buffers {bytes_text(needs.buffer_bytes)}) and "
            f"{bytes_text(needs.held_bytes)} of states",
            f"{store}, scratch {size_text(needs.scratch_bytes)}; {free}",
        ]
        if operations_per_second is not None:
            seconds = needs.operations / operations_per_second
            lines.append(
                f"about {seconds_text(seconds)} of computing, at the "
                f"{operations_per_second / 1e9:.0f} GFLOP/s that this machine shows now"
            )
        return lines


def _continued(needs: StreamNeeds) -> str:
    done = needs.layers_done
    return f"; {done} of {needs.num_layers} layers are done" if done else ""


def size_text(num_bytes: int) -> str:
    """Disk sizes are sold in decimal units and shown in binary ones: 1,048.6 GB (976.6 GiB)."""
    for name, binary, decimal in (("G", 1 << 30, 10**9), ("M", 1 << 20, 10**6)):
        if num_bytes >= decimal:
            return f"{num_bytes / decimal:,.1f} {name}B ({num_bytes / binary:,.1f} {name}iB)"
    return f"{num_bytes / 1000:,.1f} kB"


def sequences_that_fit(sizes: Sequence[int], free_bytes: int) -> int:
    """How many of the first sequences fit, by their sizes."""
    return sum(total <= free_bytes for total in accumulate(sizes))


def require_disk(estimate: Estimate, sizes: Sequence[int]) -> None:
    """Refuse before starting what would fill the disk half way.

    Args:
        estimate: what is needed, and what there is.
        sizes: disk bytes of each sequence, in order.

    Raises:
        StoreError: how much is needed and free, and how many sequences fit.
    """
    if estimate.disk_bytes <= estimate.free_bytes:
        return
    fit = sequences_that_fit(sizes, estimate.free_bytes + estimate.there_bytes)
    scratch = "" if estimate.stream is None else " with its scratch"
    raise StoreError(
        f"the store{scratch} needs {size_text(estimate.disk_bytes)} more; {estimate.place} has "
        f"{size_text(estimate.free_bytes)} free: {fit:,} of {len(sizes):,} sequences fit.",
        mend=f"Free {size_text(estimate.disk_bytes - estimate.free_bytes)}, give an --out on a "
        "larger disk, tap fewer layers, or capture fewer prompts.",
    )


def fits_in_memory(weight_bytes: int, pass_bytes: int, available_bytes: int) -> bool:
    """Whether a target can be loaded whole: its weights and what one pass takes."""
    return weight_bytes + pass_bytes <= available_bytes
