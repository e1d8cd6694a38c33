"""A job over all its hosts: its other sidecars, one view of its ranks, one budget for all of them or none."""
