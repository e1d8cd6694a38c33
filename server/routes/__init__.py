"""The HTTP routes, one file a kind."""
