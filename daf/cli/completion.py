"""`daf completion`: the lines that make a shell complete daf's commands, options and their values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_WHERE = {
    "bash": 'eval "$(daf completion bash)"        # in ~/.bashrc',
    "zsh": 'eval "$(daf completion zsh)"         # in ~/.zshrc',
    "fish": "daf completion fish | source        # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(_WHERE.values()))
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print a script for SHELL; put the line for it, as below, where that shell starts."""
    from daf.cli import main

    made = get_completion_class(shell)
    assert made is not None, "click knows these three"
    click.echo(made(main, {}, "daf", "_DAF_COMPLETE").source())
