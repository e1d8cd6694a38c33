"""`daf tune`: measure the reduction's strategies on this machine and fix the choice in a profile."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import click

from daf.sizes import format_bytes

if TYPE_CHECKING:
    from daf.kernels.reduce.choice import Case


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=pathlib.Path),
    help="The profile's file; default: DAF_PROFILE, or the cache folder.",
)
@click.option("--quick", is_flag=True, help="Fewer sizes and rounds: seconds instead of a minute.")
@click.option("--remove", is_flag=True, help="Delete the stored profile: every run then learns by itself again.")
def tune(out: pathlib.Path | None, quick: bool, remove: bool) -> None:
    """Measure how reductions run fastest here, and keep it.

    Without a profile DAF learns this from its own calls while it runs. With one, the choice is fixed, and so is the
    work of every run on this machine. A profile from another machine is not used.
    """
    from daf.kernels.reduce.choice import Profile, machine_name, profile_path

    path = out or profile_path()
    if remove:
        path.unlink(missing_ok=True)
        click.echo(f"no profile at {path} any more: runs learn by themselves")
        return
    seconds = _measure(quick)
    Profile(machine_name(), seconds).save(path)
    click.echo(f"\nstored for {machine_name()}: {path}")


def _measure(quick: bool) -> dict[Case, dict[str, float]]:
    import torch

    from daf.kernels.reduce.choice import STRATEGIES, Case
    from daf.kernels.reduce.tune import least, measure, shapes

    cases = shapes(12, 20, 4) if quick else shapes()
    values = torch.randn(max(outer * channels * inner for outer, channels, inner in cases))
    most_threads, found = torch.get_num_threads(), {}
    click.echo(f"{'size':>10} {'channels':>9} {'threads':>8}  {'  '.join(f'{name:>9}' for name in STRATEGIES)}   µs")
    try:
        for num_threads in sorted({1, most_threads}):
            torch.set_num_threads(num_threads)
            for shape in cases:
                numel = shape[0] * shape[1] * shape[2]
                times = least(measure(values.data_ptr(), "float32", shape, rounds=3 if quick else 9))
                found[Case.of(numel=numel, channels=shape[1], num_threads=num_threads)] = times
                best = min(times, key=times.__getitem__)
                cells = "  ".join(f"{times[name] * 1e6:>8.1f}{'*' if name == best else ' '}" for name in STRATEGIES)
                click.echo(f"{format_bytes(4 * numel):>10} {shape[1]:>9} {num_threads:>8}  {cells}")
    finally:
        torch.set_num_threads(most_threads)
    return found
