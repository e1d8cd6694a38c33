"""`python -m daf.server`: the sidecar, as `daf serve` starts it."""

from daf.cli.runs.serve import serve

if __name__ == "__main__":
    serve()
