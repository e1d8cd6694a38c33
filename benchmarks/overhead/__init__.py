"""What DAF's hooks cost: a saved tensor in microseconds, and the step of small models."""
