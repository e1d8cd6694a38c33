"""Training under several CPU allocators: `python -m benchmarks.allocator`."""
