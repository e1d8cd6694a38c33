"""The `daf` command."""

from __future__ import annotations

import click

from daf import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="daf")
def main() -> None:
    """A memory budget that a PyTorch training run keeps."""
