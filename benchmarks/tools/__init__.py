"""What benchmarks share: options, reports, memory limits."""
