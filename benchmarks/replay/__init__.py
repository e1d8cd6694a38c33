"""Recorded allocations replayed: `python -m benchmarks.replay`."""
