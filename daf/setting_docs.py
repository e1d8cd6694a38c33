"""What every setting means, in one row each, for the reference in the docs. Values are read in config.py."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One setting: what can be written, what holds without it, what it does."""

    values: str
    default: str
    meaning: str


SETTINGS = {
    "budget": Row(
        "`2GiB`, `512MB`, `50%`, `auto`",
        "`auto`: 80% of what is free; 90% of a GPU",
        "memory that the run may use, tensors and activations together; a percentage is of what is free at the start",
    ),
    "bits": Row("`auto`, `1` to `8`, `lossless`, `off`", "`auto`", "one width for all, or a plan (`auto`)"),
    "ratio": Row(
        "`8`, `20x`",
        "none: the budget alone decides, and all is exact while it fits",
        "with `auto`: store this many times less than plain torch does, even where there is room",
    ),
    "max_error": Row(
        "`0.1`, `10%`",
        "none: the budget alone decides",
        "with `auto`: store as little as keeps the gradient error below",
    ),
    "max_slowdown": Row(
        "`1.1`, `1.3`, `none`",
        "`1.1`",
        "with `auto`: what a step should take at most, of plain torch's, as long as bits can do instead of time",
    ),
    "floor": Row("`0` to `8`", "`1`", "planes that every stash keeps, however short memory is"),
    "spill": Row("a folder", "off", "where stashes go that the budget has no room for even at their floors"),
    "cpu_allocator": Row("`on`, `off`", "`on`", "serve torch's CPU tensors from the arena"),
    "packing": Row("`inline`, `worker`, `device`, `auto`", "`inline`", "who encodes: the forward's thread or another"),
    "rounding": Row("`nearest`, `stochastic`", "`nearest`", "`stochastic` is unbiased, with more error"),
    "sidecar": Row("`on`, `off`, `127.0.0.1:8787`", "`off`", "serve dashboard, API and metrics from a process beside"),
    "name": Row("any text", "the script", "what the run is called on the dashboard"),
    "page_bytes": Row("a power of two from 512", "`4096`", "size of a page of the arena"),
    "trace": Row("a file", "off", "write every allocation to it, for `python -m benchmarks.replay`"),
    "deterministic": Row(
        "`on`, `off`", "`off`", "plan by estimates instead of measured times: one seed gives equal losses, run to run"
    ),
    "profiling": Row(
        "`on`, `off`", "`off`", "sample which lines and modules hold memory at the peak (`daf run --profile`)"
    ),
}
# Variables that are no settings of a session.
OTHER_VARIABLES = {
    "DAF_RUNTIME_DIR": "folder of stats pages and the sidecar's files; else `$XDG_RUNTIME_DIR/daf` or `/tmp/daf-<uid>`",
    "DAF_JOB": "what the job is called; else what torchrun, Slurm, Kubernetes or MPI calls it",
    "DAF_HOST": "what this machine is called; else the node's name in Slurm and Kubernetes, or the host name",
    "DAF_JOB_TOKEN": "a secret of 16 characters or more that the sidecars of a job ask each other with",
    "DAF_JOB_TOKEN_FILE": "a file that holds it",
    "DAF_TLS_CA": "certificates by which the sidecars of other hosts are known, in PEM",
    "DAF_FILE_SD": "a file in which the sidecar lists all sidecars of its jobs, for Prometheus",
    "DAF_TLS_CERT": "with `DAF_TLS_KEY`: certificate of a sidecar that other machines reach, in PEM",
    "DAF_TLS_KEY": "its private key, in PEM",
    "DAF_PLAIN_HTTP": "`on`: a sidecar may listen beyond loopback without a certificate, for the network is trusted",
    "DAF_CACHE_DIR": "folder of compiled shims; else `$XDG_CACHE_HOME/daf` or `~/.cache/daf`",
    "DAF_PROFILE": "profile that `daf tune` wrote; `off`: none",
    "DAF_LAUNCHED_BY": "set by `daf run`: its pid, by which it finds the runs that it started",
    "DAF_ISA": "instruction set of the codecs: `scalar`, `avx2`, `avx512`, `neon`",
}


def rows_of_settings() -> list[str]:
    """Return the table of settings, as lines of Markdown."""
    head = ["| variable | values | without it | meaning |", "|---|---|---|---|"]
    return head + [f"| `DAF_{n.upper()}` | {r.values} | {r.default} | {r.meaning} |" for n, r in SETTINGS.items()]


def lines_of_keywords() -> list[str]:
    """Return one line for each setting, as `help(daf.Session)` shows them."""
    return [
        f"{name:<14} {row.meaning} ({row.values}; without it {row.default})".replace("`", "")
        for name, row in SETTINGS.items()
    ]
