"""`python -m daf.server`: the sidecar, as `daf serve` starts it."""

from daf.server.commands import serve

if __name__ == "__main__":
    serve()
