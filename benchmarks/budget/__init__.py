"""Is the budget kept: `python -m benchmarks.budget`."""
