"""The arena in C: pages, extents, importance index, eviction, one budget; its stats page and front doors."""
