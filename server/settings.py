"""What a sidecar is given once, at its start: where it listens, where its files are, how much it will take."""

from __future__ import annotations

import ipaddress
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from daf.errors import DafError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on everything that a client or a stats page could make large."""

    body_bytes: int = 16 * 1024
    body_seconds: float = 10.0
    stream_clients: int = 256
    stream_stall_seconds: float = 20.0  # a client that takes nothing for so long is cut off
    connections: int = 512  # of the port
    own_connections: int = 1024  # of the Unix socket, which only we can reach
    header_seconds: float = 10.0  # for a request's header, from the connection or the end of the answer before
    reads_per_second: float = 500.0  # of who holds a credential; of others per client address
    changes_per_second: float = 500.0
    failed_logins_per_second: float = 2.0
    processes: int = 2048
    ended_processes: int = 32  # finished and crashed runs whose story is kept
    ended_seconds: float = 24 * 3600.0
    events: int = 4096  # kept for replay
    slots: int = 4096  # rows of one process that are shown
    wait_seconds: float = 30.0
    pending_waits: int = 128  # requests that wait for an outcome at one time

    @classmethod
    def without_rates(cls) -> Limits:
        return cls(reads_per_second=1e9, changes_per_second=1e9, failed_logins_per_second=1e9)


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of the port's certificate and key, in PEM."""

    cert_path: pathlib.Path
    key_path: pathlib.Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the sidecar listens and keeps its files."""

    runtime_dir: pathlib.Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    allowed_hosts: frozenset[str] = frozenset()  # further names that the Host header may carry
    tls: Tls | None = None
    targets_path: pathlib.Path | None = None  # a file of targets for Prometheus' file_sd
    sample_seconds: float = 1.0
    limits: Limits = field(default_factory=Limits)

    @property
    def socket_path(self) -> pathlib.Path:
        return self.runtime_dir / "sidecar.sock"

    @property
    def token_path(self) -> pathlib.Path:
        return self.runtime_dir / "sidecar.token"

    @property
    def address_path(self) -> pathlib.Path:
        return self.runtime_dir / "sidecar.json"

    @property
    def lock_path(self) -> pathlib.Path:
        return self.runtime_dir / "sidecar.lock"

    @property
    def audit_path(self) -> pathlib.Path:
        return self.runtime_dir / "audit.log"

    @property
    def is_exposed(self) -> bool:
        """Whether machines other than this one can reach the sidecar: then reading needs the token too."""
        return not is_loopback(self.host)


def check_exposure(host: str, *, has_tls: bool, is_meant: bool) -> None:
    """Refuse to be reached from other machines in plain text, unless somebody has said that it is meant."""
    if is_loopback(host) or has_tls or is_meant:
        return
    raise DafError(
        f"{host} is reached by other machines: whoever sees the traffic would read the token and could change budgets. "
        "Give a certificate (--tls-cert and --tls-key, or DAF_TLS_CERT and DAF_TLS_KEY), or say that the network is "
        "trusted (--plain-http, or DAF_PLAIN_HTTP=on)"
    )


def tls_from(cert: str | None, key: str | None) -> Tls | None:
    """Return the certificate that two file names mean; none where both are empty."""
    if not cert and not key:
        return None
    if not cert or not key:
        raise DafError(
            "a certificate needs its key: give both --tls-cert and --tls-key, or DAF_TLS_CERT and DAF_TLS_KEY"
        )
    return Tls(pathlib.Path(cert), pathlib.Path(key))


def check_exposure_of(host: str, environ: Mapping[str, str]) -> None:
    """The same for a sidecar that is about to be started with these variables."""
    has_tls = tls_from(environ.get("DAF_TLS_CERT"), environ.get("DAF_TLS_KEY")) is not None
    is_meant = environ.get("DAF_PLAIN_HTTP", "").lower() in ("1", "on", "true", "yes")
    check_exposure(host, has_tls=has_tls, is_meant=is_meant)


def is_address(name: str) -> bool:
    """Whether `name` is a bare IP address and no name.

    >>> is_address("192.168.1.5"), is_address("[::1]"), is_address("evil.example")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
