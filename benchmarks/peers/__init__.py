"""Other ways to save activation memory, behind one interface: what `benchmarks.train` measures DAF against.

The compression schemes are written in torch ops from their papers' description: what they cost in time is what the
scheme costs without kernels of its own, which on the CPU none of the original packages has.
"""
