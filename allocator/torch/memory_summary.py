"""`daf.memory_summary()`: the statistics as a table, laid out as torch's users know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daf.allocator.torch.memory_stats import memory_stats
from daf.sizes import format_bytes

_WIDTH = 76
_SIZES = (
    ("allocated_bytes", "Allocated memory"),
    ("active_bytes", "Active memory"),
    ("requested_bytes", "Requested memory"),
    ("reserved_bytes", "Reserved memory"),
    ("inactive_split_bytes", "Cached memory"),
)
_COUNTS = (
    ("allocation", "Allocations"),
    ("active", "Active allocs"),
    ("segment", "Reserved segments"),
    ("inactive_split", "Cached extents"),
)
_POOLS = (("large_pool", "      from large pool"), ("small_pool", "      from small pool"))


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return a table of memory_stats(device) for people; `abbreviated` leaves out the pools."""
    stats = memory_stats(device)
    title = f"DAF memory summary, device {device if device is not None else 'cpu'}"
    lines = [
        "=" * _WIDTH,
        title.center(_WIDTH - 2),
        "-" * _WIDTH,
        f"OOMs: {stats['num_ooms']}    retries: {stats['num_alloc_retries']}".center(_WIDTH - 2),
        "=" * _WIDTH,
        _line("Metric".center(21), ("Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed")),
    ]
    for rows, show in ((_SIZES, format_bytes), (_COUNTS, _format_count)):
        for key, name in rows:
            lines += ["-" * _WIDTH, *_metric(stats, key, name, show, () if abbreviated else _POOLS)]
    lines.append("=" * _WIDTH)
    return "\n".join(f"|{line[: _WIDTH - 2]:<{_WIDTH - 2}}|" for line in lines) + "\n"


def _metric(
    stats: dict[str, int], key: str, name: str, show: Callable[[int], str], pools: tuple[tuple[str, str], ...]
) -> list[str]:
    kinds = ("current", "peak", "allocated", "freed")
    return [
        _line(label, tuple(show(stats[f"{key}.{pool}.{kind}"]) for kind in kinds))
        for pool, label in (("all", name), *pools)
    ]


def _line(label: str, cells: tuple[str, ...]) -> str:
    return f" {label:<21} | " + " | ".join(f"{cell:>10}" for cell in cells)


def _format_count(count: int) -> str:
    for limit, divisor, suffix in ((750_000, 1, ""), (750_000_000, 1000, " K")):
        if count < limit:
            return f"{count // divisor}{suffix}"
    return f"{count // 10**6} M"
