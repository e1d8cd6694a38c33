"""What the benchmarks train: models, data, losses."""
