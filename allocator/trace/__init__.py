"""Recordings of what was asked of an allocator."""
