"""`python -m daf.cli.demo`: the demo, as `make demo` starts it."""

from daf.cli.demo.command import demo

if __name__ == "__main__":
    demo()
