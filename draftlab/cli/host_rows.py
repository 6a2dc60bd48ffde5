"""Rows about the machine itself: memory, processors, disks, GPUs, measured rates."""

from __future__ import annotations

from collections.abc import Iterator

from draftlab.base.quantities import bytes_text
from draftlab.cli.host_parts import Row, unknown
from draftlab.host.fact import Absent, Fact, Known
from draftlab.host.facts import AskedDisk, Cpu, Disk, Gpu, Gpus, HostFacts, Memory, Rates

_SHOWN_ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "i8mm", "bf16", "sve")


def machine_rows(facts: HostFacts) -> Iterator[Row]:
    """Everything that is not software."""
    yield from _memory(facts.memory)
    yield from _cpu(facts.cpu)
    for asked in facts.disks:
        yield from _disk(asked)
    yield from _gpus(facts.gpus)
    yield from _rates(facts.rates)


def _memory(fact: Fact[Memory]) -> Iterator[Row]:
    if not isinstance(fact, Known):
        yield unknown("memory", fact)
        return
    memory = fact.value
    swap = bytes_text(memory.swap_total_bytes) if memory.swap_total_bytes else "none"
    available, usable = memory.usable_available_bytes, memory.usable_bytes
    limited = ""
    if isinstance(memory.limit_bytes, Known):
        limited = f" (container limit; the machine has {bytes_text(memory.total_bytes)})"
    yield Row(
        "memory",
        f"{bytes_text(available)} available of {bytes_text(usable)}{limited} · swap {swap}",
    )


def _cpu(fact: Fact[Cpu]) -> Iterator[Row]:
    if not isinstance(fact, Known):
        yield unknown("cpu", fact)
        return
    cpu = fact.value
    model = cpu.model.value if isinstance(cpu.model, Known) else "model unknown"
    parts = [model, f"{cpu.logical_cpus} CPUs"]
    if isinstance(cpu.cores, Known) and isinstance(cpu.sockets, Known):
        sockets = f", {cpu.sockets.value} sockets" if cpu.sockets.value > 1 else ""
        parts[-1] += f" ({cpu.cores.value} cores{sockets})"
    if cpu.usable_cpus < cpu.logical_cpus:
        parts.append(f"{cpu.usable_cpus:g} usable here")
    if isinstance(cpu.load_1min, Known):
        parts.append(f"load {cpu.load_1min.value:g}")
    yield Row("cpu", " · ".join(parts))
    isa = [name for name in cpu.isa if name in _SHOWN_ISA]
    bf16 = "emulated: compute in float32" if cpu.bf16 == "emulated" else f"by {cpu.bf16}"
    yield Row("cpu", f"{' '.join(isa) or 'no extension that matters'} · bfloat16 {bf16}")


def _disk(asked: AskedDisk) -> Iterator[Row]:
    if not isinstance(asked.disk, Known):
        yield unknown("disk", asked.disk, subject=asked.asked)
        return
    disk = asked.disk.value
    kind = disk.kind.value if isinstance(disk.kind, Known) else "kind unknown"
    where = "" if disk.exists else f" (not there; {disk.measured_at} is)"
    parts = [
        f"{asked.asked}{where} · {bytes_text(disk.free_bytes)} free of "
        f"{bytes_text(disk.total_bytes)} ({kind}, {disk.mount_point})"
    ]
    if isinstance(disk.inodes, Known):
        parts.append(f"{disk.inodes.value.free:,} files")
    yield Row("disk", " · ".join(parts))
    for trouble in _troubles(disk):
        yield Row("disk", f"! {trouble}", "warning")


def _troubles(disk: Disk) -> Iterator[str]:
    if disk.takes_no_files:
        yield "no files can be created: all its inodes are used"
    if disk.in_memory:
        yield "kept in memory: what is written there takes memory and is gone after a restart"
    if not disk.writable:
        yield "this user may not write there"


def _gpus(fact: Fact[Gpus]) -> Iterator[Row]:
    if not isinstance(fact, Known):
        yield unknown("gpu", fact)
        return
    ceiling = fact.value.cuda_ceiling
    cuda = f"CUDA up to {ceiling.value}" if isinstance(ceiling, Known) else "CUDA unknown"
    drivers = {gpu.driver for gpu in fact.value.gpus}
    yield Row("gpu", f"driver {', '.join(sorted(drivers))} · {cuda}")
    for gpu in fact.value.gpus:
        yield from _gpu(gpu)


def _gpu(gpu: Gpu) -> Iterator[Row]:
    parts = [f"{gpu.index}: {gpu.name}"]
    if isinstance(gpu.memory, Known):
        memory = gpu.memory.value
        parts.append(f"{bytes_text(memory.free_bytes)} free of {bytes_text(memory.total_bytes)}")
    else:
        about = "memory " if isinstance(gpu.memory, Absent) else "? memory: "
        parts.append(f"{about}{gpu.memory.why}")
    if gpu.mig_profiles:
        parts.append(f"divided: {', '.join(gpu.mig_profiles)}")
    if isinstance(gpu.holders, Known):
        parts.append(f"held by {', '.join(f'{h.name} ({h.pid})' for h in gpu.holders.value[:3])}")
    elif not isinstance(gpu.holders, Absent):
        parts.append(f"? {gpu.holders.why}")
    yield Row("gpu", " · ".join(parts))


def _rates(fact: Fact[Rates]) -> Iterator[Row]:
    if isinstance(fact, Absent):
        return  # not asked
    if not isinstance(fact, Known):
        yield unknown("rates", fact)
        return
    rates = fact.value
    if isinstance(rates.disk_read, Known):
        disk = rates.disk_read.value
        how = "past the page cache" if disk.past_cache else "the page cache may have helped"
        yield Row("rates", f"disk reads {_rate(disk.bytes_per_second)} ({how})")
    else:
        yield unknown("rates", rates.disk_read, subject="disk reads")
    if isinstance(rates.zero_fill_bytes_per_second, Known):
        fill = rates.zero_fill_bytes_per_second.value
        yield Row("rates", f"memory, one thread filling with zeros: {_rate(fill)}")
    yield from _computed(rates)


def _computed(rates: Rates) -> Iterator[Row]:
    if not isinstance(rates.computed, Known):
        yield unknown("rates", rates.computed, subject="matrix products")
        return
    measured = rates.computed.value
    yield Row("rates", f"memory copy {_rate(measured.copy_bytes_per_second)} ({measured.tool})")
    products = ", ".join(
        f"{name} {rate.flops_per_second / 1e9:,.3g} GFLOP/s"
        for name, rate in measured.matrix.items()
    )
    yield Row("rates", f"matrix products {products}")
    for gpu in measured.gpus:
        best = ", ".join(
            f"{n} {r.flops_per_second / 1e12:.3g} TFLOP/s" for n, r in gpu.matrix.items()
        )
        yield Row("rates", f"gpu {gpu.index}: copy {_rate(gpu.copy_bytes_per_second)}, {best}")


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_text(bytes_per_second)}/s"
