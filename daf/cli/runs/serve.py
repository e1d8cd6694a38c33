"""`daf serve`: the sidecar in the foreground."""

from __future__ import annotations

import logging
import pathlib

import click

from daf.cli.command import Command
from daf.server.settings import DEFAULT_HOST, DEFAULT_PORT


@click.command(cls=Command)
@click.option(
    "--host",
    default=DEFAULT_HOST,
    show_default=True,
    help="Address to listen on. Others than loopback need the token for reading too.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port; 0 takes a free one, and so does the default one where it is taken, and says so.",
)
@click.option("--tls-cert", envvar="DAF_TLS_CERT", help="Certificate of the port, in PEM; with --tls-key.")
@click.option("--tls-key", envvar="DAF_TLS_KEY", help="Its private key, in PEM.")
@click.option(
    "--plain-http",
    is_flag=True,
    envvar="DAF_PLAIN_HTTP",
    help="Listen beyond loopback without a certificate: the network is trusted.",
)
@click.option(
    "--file-sd",
    envvar="DAF_FILE_SD",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    help="Keep a list of all sidecars here, for Prometheus' file_sd_configs.",
)
@click.option("--allow-host", multiple=True, help="A further name under which the sidecar may be asked for.")
@click.option(
    "--idle-exit",
    type=click.FloatRange(0),
    default=0.0,
    help="End after so many seconds in which nothing needed it; 0 for never.",
)
@click.option("--quiet", is_flag=True, help="Print no link.")
@click.option("--unlimited-rate", is_flag=True, hidden=True)  # for tests and benchmarks
def serve(
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    *,
    tls_cert: str | None,
    tls_key: str | None,
    plain_http: bool,
    file_sd: pathlib.Path | None,
    idle_exit: float,
    quiet: bool,
    unlimited_rate: bool,
) -> None:
    """Serve the live page, the API and the metrics of all DAF runs of yours on this machine.

    \b
    Prints the page's address, with a one-time link that may change budgets. Open it anew with `daf page`.
    """
    from daf.allocator.stats.runtime_dir import make_runtime_dir
    from daf.server.fleet.state import Sidecar
    from daf.server.settings import Limits, Settings, check_exposure, tls_from
    from daf.server.sidecar import serve as run_server

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    tls = tls_from(tls_cert, tls_key)
    check_exposure(host, has_tls=tls is not None, is_meant=plain_http)
    names = frozenset(name.lower() for name in allow_host)
    settings = Settings(
        make_runtime_dir(),
        host,
        port,
        names,
        tls,
        file_sd,
        limits=Limits.without_rates() if unlimited_rate else Limits(),
    )

    def announce(sidecar: Sidecar) -> None:
        if quiet:
            return
        click.echo(f"address  {sidecar.address}")
        if settings.is_exposed:
            click.echo("open to  other machines: the page without data to all, reading and changing with the token")
        click.echo(f"page     {sidecar.address}/#code={sidecar.keyring.new_code()}")
        click.echo(f"metrics  {sidecar.address}/metrics")
        click.echo(f"token    {settings.token_path}")

    run_server(settings, announce=announce, idle_exit_seconds=idle_exit)
