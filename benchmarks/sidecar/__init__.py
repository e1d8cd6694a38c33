"""What the sidecar costs and how soon it answers: `python -m benchmarks.sidecar`."""
