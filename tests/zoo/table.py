"""The zoo's verdicts as a table, on the terminal and in docs/zoo.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.zoo.harness import MAX_NORM_RATIO, TOLERANCE, Verdict

HEADS = ("model", "mode", "steps", "saved", "ratio", "plain loss", "loss", "worst norm", "verdict")
INTRODUCTION = f"""# The zoo

Small models and losses of every family, each trained with plain torch and under DAF from the same seed. Made by
`make zoo` (`python -m tests.zoo`); the code is in `tests/zoo/`.

- *default* and *lossless*: losses and final weights must equal plain torch's to the last bit.
- *ratio 8*, *ratio 16*: the final loss (mean of the last five steps) must be within {TOLERANCE:.0%} of plain's or
  within plain's own spread over three seeds, whichever is larger; no NaN; no gradient norm above
  {MAX_NORM_RATIO:g} times plain's at the same step.
- *saved* is what plain torch holds between forward and backward, *ratio* how many times less DAF held in the last step.
  A ratio is a wish: what cannot be compressed safely stays exact, and a model that saves little keeps all of it.
- *worst norm* is the largest gradient norm over plain's at the same step.

"""


def cells(verdict: Verdict) -> tuple[str, ...]:
    return (
        verdict.name,
        verdict.mode,
        str(verdict.steps),
        f"{verdict.raw_bytes / 2**20:.1f} MiB",
        f"{verdict.ratio:.1f}x",
        f"{verdict.plain_loss:.4g}",
        f"{verdict.loss:.4g}",
        f"{verdict.norm_ratio:.2f}",
        verdict.fault or ("equal" if verdict.is_equal else "fine"),
    )


def summary(verdicts: Sequence[Verdict]) -> str:
    modes = dict.fromkeys(verdict.mode for verdict in verdicts)
    parts = []
    for mode in modes:
        ours = [verdict for verdict in verdicts if verdict.mode == mode]
        parts.append(f"{mode}: {sum(not verdict.fault for verdict in ours)} of {len(ours)}")
    return "Fine in " + ", ".join(parts) + "."


def markdown(verdicts: Sequence[Verdict]) -> str:
    lines = [INTRODUCTION + summary(verdicts), ""]
    for family in dict.fromkeys(verdict.family for verdict in verdicts):
        lines += [f"## {family.replace('_', ' ').capitalize()}", "", _row(HEADS), _row(["---"] * len(HEADS))]
        lines += [_row(cells(verdict)) for verdict in verdicts if verdict.family == family]
        lines.append("")
    return "\n".join(lines)


def _row(texts: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "/").replace("\n", " ") for text in texts) + " |"
