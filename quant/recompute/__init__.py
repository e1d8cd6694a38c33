"""Content that is worked out again in backward instead of stored."""
