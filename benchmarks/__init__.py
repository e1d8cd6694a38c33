"""Measurements of DAF beside its peers. Each module runs as `python -m benchmarks.<name> [--json FILE]`."""
