"""Memory, speed and gradient error of training: `python -m benchmarks.train`."""
