"""Torch's front doors: its CPU allocator, CUDAPluggableAllocator, and memory statistics in its words."""
