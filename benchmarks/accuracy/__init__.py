"""How well training ends: `python -m benchmarks.accuracy`."""
