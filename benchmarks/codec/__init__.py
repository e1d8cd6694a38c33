"""The codecs beside their peers: `python -m benchmarks.codec`."""
