"""What to make of a run: one sentence with its reason and what to do next. Each rule is a small function in `rules`."""

from daf.server.verdict.evidence import Evidence, Verdict
from daf.server.verdict.rules import RULES, judge

__all__ = ["RULES", "Evidence", "Verdict", "judge"]
