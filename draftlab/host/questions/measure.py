"""Runs on the probed machine, in its own Python with torch or numpy; prints one JSON line.

Nothing of draftlab is there, so this imports only that Python's packages, and by name: here, torch
is never loaded. What it allocates is at most 1 GiB. The GPU half was written without a GPU at hand.
"""

import importlib
import json
import time
from typing import Any

SECONDS = 0.7
"""Per measurement."""
COPIED_BYTES = 1 << 28


def best_rate(work: Any, amount: float, settle: Any) -> float:
    """The best `amount` per second of repeated calls; once before, untimed."""
    work()
    settle()
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        start = time.perf_counter()
        work()
        settle()
        best = max(best, amount / (time.perf_counter() - start))
    return best


def matrix_rate(product: Any, make: Any, settle: Any) -> dict[str, float]:
    """Floating point operations per second of square products, the largest that are quick."""
    side = 128
    while True:
        a = make(side)
        start = time.perf_counter()
        product(a)
        settle()
        took = time.perf_counter() - start
        if side >= 4096 or took > 0.05:
            break
        side *= 2
    return {"side": side, "flops_per_second": best_rate(lambda: product(a), 2.0 * side**3, settle)}


def copy_rate(torch: Any, here: str, there: str, settle: Any) -> float:
    """Bytes per second, read and written together."""
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=here)
    goal = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=there)
    return best_rate(lambda: goal.copy_(source), 2.0 * COPIED_BYTES, settle)


def with_torch(torch: Any, device: str) -> dict[str, Any]:
    """Copy and matrix rates on one device."""
    settle = torch.cuda.synchronize if device != "cpu" else lambda: None
    copy = copy_rate(torch, device, device, settle)
    found = {}
    for name in ("float32", "bfloat16", "float16"):
        kind = getattr(torch, name)
        found[name] = matrix_rate(
            lambda a: a @ a,
            lambda side, kind=kind: torch.ones(side, side, dtype=kind, device=device),
            settle,
        )
    return {"copy_bytes_per_second": copy, "matrix": found}


def gpu_rates(torch: Any) -> dict[str, Any]:
    """Rates of each GPU that has 2 GiB free, and what it copies to the other such."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    free = [index for index in range(count) if torch.cuda.mem_get_info(index)[0] >= 2 << 30]
    rates = []
    for index in free:
        with torch.cuda.device(index):
            own = with_torch(torch, f"cuda:{index}")
        peers = [peer_rate(torch, index, other) for other in free if other != index]
        rates.append({"index": index, "peers": peers, **own})
    return {"gpus": rates, "gpus_without_room": [i for i in range(count) if i not in free]}


def peer_rate(torch: Any, index: int, other: int) -> dict[str, Any]:
    """What one GPU copies to another, and whether they reach each other directly."""

    def settle() -> None:
        torch.cuda.synchronize(index)
        torch.cuda.synchronize(other)

    direct = torch.cuda.can_device_access_peer(index, other)
    rate = copy_rate(torch, f"cuda:{index}", f"cuda:{other}", settle)
    return {"index": other, "is_direct": direct, "copy_bytes_per_second": rate}


def with_numpy(numpy: Any) -> dict[str, Any]:
    """Copy and matrix rates; numpy multiplies in float32, it has no bfloat16."""
    source = numpy.ones(COPIED_BYTES, dtype=numpy.uint8)
    goal = numpy.empty_like(source)
    copy = best_rate(lambda: numpy.copyto(goal, source), 2.0 * COPIED_BYTES, lambda: None)
    matrix = matrix_rate(
        lambda a: a @ a,
        lambda side: numpy.ones((side, side), dtype=numpy.float32),
        lambda: None,
    )
    return {"copy_bytes_per_second": copy, "matrix": {"float32": matrix}}


def main() -> None:
    """Measure with torch, else with numpy."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        numpy = importlib.import_module("numpy")
        found = {"tool": f"numpy {numpy.__version__}", **with_numpy(numpy)}
    else:
        threads = torch.get_num_threads()
        plural = "" if threads == 1 else "s"
        tool = f"torch {torch.__version__}, {threads} thread{plural}"
        found = {"tool": tool, **with_torch(torch, "cpu"), **gpu_rates(torch)}
    print(json.dumps(found))  # noqa: T201  # this is its whole answer


if __name__ == "__main__":
    main()
