"""`python -m daf.cli`: the `daf` command."""

from daf.cli import main

if __name__ == "__main__":
    main(prog_name="daf")
