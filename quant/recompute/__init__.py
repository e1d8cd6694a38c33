"""Content that is recomputed in backward instead of stored."""
