"""The paged pool under load: `python -m benchmarks.pool`."""
