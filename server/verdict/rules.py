"""The rules. Each looks at the evidence and says something, or nothing: no verdict without data."""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from daf.server.verdict.evidence import LEVELS, Evidence, Verdict
from daf.sizes import format_bytes

MIB = 1 << 20
ROOM = 1.05  # a budget that is advised has a little more than what was counted
NOTABLE_ERROR, LARGE_ERROR = 0.01, 0.2
MIN_SAMPLES = 6
GROWTH_SHARE = 0.0005  # of what is in use, a step: less is the noise of shapes that vary
UNEVEN_STEPS = 3.0
LARGE_TEMPORARIES = 0.4
NEVER_READ = "never read"  # what stands on the stats page in place of a slot's readers
UNREAD_BYTES, UNREAD_SHARE = 1 * MIB, 0.02


def did_not_fit(run: Evidence) -> Verdict | None:
    """Requests failed when nothing was left to drop."""
    count = run.value("oom_total")
    if not count:
        return None
    least = ROOM * max(run.value("peak_held_bytes"), run.value("budget_bytes"))
    text = (
        f"Out of memory {count:.0f} times in a budget of {format_bytes(run.value('budget_bytes'))}: give it at least "
        f"{format_bytes(least)}, or make the batch smaller."
    )
    return Verdict("did_not_fit", "trouble", text, {"oom_total": count, "least_bytes": least}, {"budget_bytes": least})


def memory_grows(run: Evidence) -> Verdict | None:
    """Every step leaves something behind."""
    growth = _growth(run)
    if growth < max(4096.0, GROWTH_SHARE * run.live_bytes):
        return None
    text = f"Memory grows by {format_bytes(growth)} a step: {_who_keeps(run)}"
    return Verdict("memory_grows", "trouble", text, {"growth_bytes_per_step": growth})


def _growth(run: Evidence) -> float:
    """Bytes a step, from the samples over time; where there are none, as the training side noticed it."""
    steps, live = run.column("steps_total"), run.column("last_step_live_bytes")
    pairs = [(s, b) for s, b in zip(steps, live, strict=False) if b > 0 and s >= 3]
    if len(pairs) < MIN_SAMPLES or pairs[-1][0] - pairs[0][0] < MIN_SAMPLES:
        return float(run.notes.get("growth_bytes_per_step", 0.0))
    third = len(pairs) // 3
    is_steady = min(b for _, b in pairs[-third:]) > max(b for _, b in pairs[:third])
    return (pairs[-1][1] - pairs[0][1]) / (pairs[-1][0] - pairs[0][0]) if is_steady else 0.0


def _who_keeps(run: Evidence) -> str:
    containers = run.notes.get("containers") or ()
    if not containers:
        advice = "something keeps tensors or whole graphs alive, such as a list of losses"
        return f"{advice}. Keep loss.item() or loss.detach() instead."
    worst = max(containers, key=lambda one: bool(one["has_graph"]))
    who = f"`{worst['name']}` ({worst['place']})"
    if worst["has_graph"]:
        return f"{who} keeps graphs alive. Append loss.item(), or x.detach(), instead."
    return f"{who} gains a tensor with every step. Keep numbers (.item()), or fewer of them."


def is_never_read(run: Evidence) -> Verdict | None:
    """Activations are saved that no backward asks for."""
    rows = [row for row in run.slots if row.op == NEVER_READ and row.stored_bytes > 0]
    total = sum(row.stored_bytes for row in rows)
    if total < max(UNREAD_BYTES, UNREAD_SHARE * run.live_bytes):
        return None
    name = max(rows, key=lambda row: row.stored_bytes).name.rsplit(":", 1)[0]
    others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    text = (
        f"{format_bytes(total)} are saved for a backward that never reads them ({name}{others}): compute that under "
        "torch.no_grad(), or detach what goes in."
    )
    return Verdict("is_never_read", "warning", text, {"unread_bytes": float(total), "layers": float(len(rows))})


def is_stopped(run: Evidence) -> Verdict | None:
    """Somebody stopped compressing, and may have forgotten it."""
    if not run.value("is_paused"):
        return None
    text = "Compressing is stopped by command: new activations are kept exact until it is resumed."
    return Verdict("is_stopped", "note", text, {"is_paused": 1.0}, {"resume": 1.0})


def loses_bits(run: Evidence) -> Verdict | None:
    """Activations are stored in few bits, and the gradient feels it."""
    rows = run.lossy_slots
    if not run.has_steps or run.error < NOTABLE_ERROR or not rows:
        return None
    fewest = min(row.bits for row in rows)
    count = sum(row.bits < fewest + 0.5 for row in rows)
    exact_bytes = ROOM * run.plain_bytes
    is_tight = run.live_bytes > 0.8 * run.value("budget_bytes")
    who = "The budget forces" if is_tight else "Compression leaves"
    text = f"{who} {fewest:.0f} bit{'s' * (fewest >= 1.5)} in {count} layer{'s' * (count != 1)}, gradient error "
    text += f"{run.error:.0%}; {format_bytes(exact_bytes)} would keep everything exact."
    fits = exact_bytes > run.value("budget_bytes") and (not run.machine_bytes or exact_bytes < run.machine_bytes)
    return Verdict(
        "loses_bits",
        "trouble" if run.error > LARGE_ERROR else "warning",
        text,
        {"bits": fewest, "layers": float(count), "error_ratio": run.error, "exact_budget_bytes": exact_bytes},
        {"budget_bytes": exact_bytes} if fits else {},
    )


def temporaries_are_large(run: Evidence) -> Verdict | None:
    """The peak is made of what ops need for a moment, not of what is saved."""
    if not run.has_steps or not run.fixed_bytes or not run.live_bytes:
        return None
    known = run.fixed_bytes + run.value("last_step_saved_bytes")
    share = (run.live_bytes - known) / run.live_bytes
    if share < LARGE_TEMPORARIES or run.live_bytes < 0.5 * run.value("budget_bytes"):
        return None
    where = f" ({_place(run.lines[0])} held most at the peak)" if run.lines else ""
    text = (
        f"{share:.0%} of the step's peak are temporaries, which cannot be compressed{where}: compute the loss or the "
        "largest op in chunks."
    )
    return Verdict("temporaries_are_large", "warning", text, {"share_ratio": share, "live_bytes": run.live_bytes})


def _place(line: Mapping[str, Any]) -> str:
    return f"{pathlib.PurePath(line['file']).name}:{line['line']}"


def memory_is_in_pieces(run: Evidence) -> Verdict | None:
    """Much is free, and in pieces too small to serve."""
    ratio, cached, budget = (run.value(name) for name in ("fragmentation_ratio", "cached_bytes", "budget_bytes"))
    if not run.has_steps or ratio < 0.5 or cached < max(64 * MIB, 0.15 * budget):
        return None
    text = (
        f"{format_bytes(cached)} are free in pieces ({ratio:.0%} fragmented): shapes differ from step to step. Pad or "
        "bucket the inputs to few sizes."
    )
    return Verdict("memory_is_in_pieces", "note", text, {"fragmentation_ratio": ratio, "cached_bytes": cached})


def steps_are_uneven(run: Evidence) -> Verdict | None:
    """Some steps take much longer than others."""
    seconds = [s for s in run.column("step_seconds") if s > 0][2:]
    usual, slow = (run.notes.get(name, 0.0) for name in ("usual_seconds", "slow_seconds"))
    if len(seconds) >= 3 * MIN_SAMPLES:
        usual, slow = statistics.median(seconds), sorted(seconds)[-max(2, len(seconds) // 20)]
    if not usual or slow < UNEVEN_STEPS * usual:
        return None
    text = (
        f"Slow steps take {slow:.2g} s, usual ones {usual:.2g} s: look at data loading, evaluation between steps, or "
        "evictions at that time."
    )
    return Verdict("steps_are_uneven", "note", text, {"slow_seconds": slow, "usual_seconds": usual})


def fits_exactly(run: Evidence) -> Verdict | None:
    """Nothing is lost, and there may be room for more."""
    budget, live = run.value("budget_bytes"), run.live_bytes
    if not run.has_steps or not live or not budget or not run.is_exact:
        return None
    text = f"Fits exactly: {format_bytes(live)} of {format_bytes(budget)}"
    evidence = {"live_bytes": live, "budget_bytes": budget}
    if run.fixed_bytes and live > run.fixed_bytes:
        factor = (budget - run.fixed_bytes) / (live - run.fixed_bytes)
        if factor >= 1.1:
            text += f"; the batch could be {factor:.1f} times as large"
            evidence["batch_factor"] = factor
    return Verdict("fits_exactly", "good", text + ".", evidence)


def compresses_well(run: Evidence) -> Verdict | None:
    """Bits are dropped, and the gradient does not feel it."""
    if not run.has_steps or run.is_exact or run.error >= NOTABLE_ERROR or not run.error:
        return None
    raw, saved = run.value("last_step_saved_raw_bytes"), run.value("last_step_saved_bytes")
    if not saved or raw <= saved:
        return None
    text = f"Activations take {raw / saved:.1f} times less than plain at a gradient error of {run.error:.1%}."
    return Verdict("compresses_well", "good", text, {"ratio": raw / saved, "error_ratio": run.error})


Rule = Callable[[Evidence], Verdict | None]
RULES: tuple[Rule, ...] = (
    did_not_fit,
    memory_grows,
    is_never_read,
    loses_bits,
    temporaries_are_large,
    is_stopped,
    memory_is_in_pieces,
    steps_are_uneven,
    fits_exactly,
    compresses_well,
)


def judge(run: Evidence) -> list[Verdict]:
    """Return all that the rules find, the gravest first."""
    found = [verdict for rule in RULES if (verdict := rule(run)) is not None]
    return sorted(found, key=lambda verdict: -LEVELS.index(verdict.level))
