"""The rules. Each looks at the evidence and says something, or nothing: no verdict without data."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from daf.server.verdict.evidence import LEVELS, Evidence, Verdict
from daf.sizes import format_bytes

MIB = 1 << 20
ROOM = 1.05  # a budget that is advised has a little more than what was counted
NOTABLE_ERROR, LARGE_ERROR = 0.01, 0.2
MIN_SAMPLES = 6
GROWTH_SHARE = 0.0005  # of what is in use, a step: less is the noise of shapes that vary
UNEVEN_STEPS = 3.0
LARGE_TEMPORARIES = 0.4


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
    steps, live = run.column("steps_total"), run.column("last_step_live_bytes")
    pairs = [(s, b) for s, b in zip(steps, live, strict=False) if b > 0 and s >= 3]
    if len(pairs) < MIN_SAMPLES or pairs[-1][0] - pairs[0][0] < MIN_SAMPLES:
        return None
    growth = (pairs[-1][1] - pairs[0][1]) / (pairs[-1][0] - pairs[0][0])
    third = len(pairs) // 3
    is_steady = min(b for _, b in pairs[-third:]) > max(b for _, b in pairs[:third])
    if not is_steady or growth < max(4096.0, GROWTH_SHARE * pairs[-1][1]):
        return None
    text = (
        f"Memory grows by {format_bytes(growth)} a step: something keeps tensors or whole graphs alive, such as a list "
        "of losses. Keep loss.item() or loss.detach() instead."
    )
    return Verdict("memory_grows", "trouble", text, {"growth_bytes_per_step": growth, "num_samples": len(pairs)})


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
    text = (
        f"{share:.0%} of the step's peak are temporaries, which cannot be compressed: compute the loss or the largest "
        "op in chunks."
    )
    return Verdict("temporaries_are_large", "warning", text, {"share_ratio": share, "live_bytes": run.live_bytes})


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
    if len(seconds) < 3 * MIN_SAMPLES:
        return None
    usual, slow = statistics.median(seconds), sorted(seconds)[-max(2, len(seconds) // 20)]
    if slow < UNEVEN_STEPS * usual:
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
