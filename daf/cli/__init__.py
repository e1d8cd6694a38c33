"""The `daf` command. Each subcommand lives in a module of its own and is imported when it is called."""

from __future__ import annotations

import difflib
import importlib

import click

from daf import __version__

# name -> (module, attribute, one line of help): the help page is shown without importing any of them
_COMMANDS = {
    "run": ("daf.cli.run", "run", "Run a training script under DAF, with the sidecar and a summary at the end."),
    "serve": ("daf.cli.runs.serve", "serve", "Serve the live page, the API and the metrics of all runs."),
    "page": ("daf.cli.runs.page", "page", "Print a link that opens the live page with the right to change budgets."),
    "top": ("daf.cli.runs.top", "top", "Watch all runs in the terminal, and set their budgets."),
    "ps": ("daf.cli.runs.ps", "ps", "List DAF processes: the living, the finished, the crashed."),
    "budget": ("daf.cli.runs.budget", "budget", "Show the budget of a run, or change it while it goes on."),
    "events": ("daf.cli.runs.events", "events", "Print what happened: evictions, resizes, out of memory."),
    "report": ("daf.cli.runs.report", "report", "Write one HTML file about a run, to be opened offline and passed on."),
    "compare": ("daf.cli.runs.compare", "compare", "Set two runs side by side."),
    "export": ("daf.cli.runs.export", "export", "Write a run for torch's memory viewer, for Perfetto, or as JSON."),
    "clean": ("daf.cli.runs.clean", "clean", "Forget all runs that have ended."),
    "fit": ("daf.cli.fit.command", "fit", "Try a few steps of a script at several budgets and say what it needs."),
    "fidelity": (
        "daf.cli.fidelity",
        "fidelity",
        "Run a few steps of a script and show what compression does to its gradient.",
    ),
    "doctor": ("daf.cli.doctor", "doctor", "Say what DAF finds on this machine, what is on and why."),
    "tune": ("daf.cli.tune", "tune", "Measure how reductions run fastest on this machine, and keep it."),
    "completion": ("daf.cli.completion", "completion", "Print what makes a shell complete daf's commands and options."),
    "demo": ("daf.cli.demo.command", "demo", "Train a small GPT, plain and under DAF, and compare."),
}


class _LazyGroup(click.Group):
    """A group that knows its commands by name, so that `daf --help` takes milliseconds."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in _COMMANDS:
            return None
        module, attribute, _help = _COMMANDS[name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, _COMMANDS, n=1)
            advice = f"did you mean daf {close[0]}?" if close else f"the commands are {', '.join(_COMMANDS)}"
            if name.endswith(".py"):
                advice = f"did you mean daf run {name}?"
            ctx.fail(f"there is no command {name!r}; {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_module, _attribute, text) in _COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: daf run --budget 2GiB train.py. Or change nothing and set PYTORCH_ALLOCATOR=daf.",
)
@click.version_option(__version__, prog_name="daf")
def main() -> None:
    """DAF gives a PyTorch training run a memory budget that it keeps.

    Until memory is short, training is exactly plain PyTorch. Then saved activations are compressed, as little as the
    budget asks and where the gradient feels it least.
    """
