"""What a sidecar is told once, at its start: where it listens, where its files are, how much it will take."""

from __future__ import annotations

import ipaddress
import pathlib
from dataclasses import dataclass, field

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on everything that a client or a stats page could make large."""

    body_bytes: int = 16 * 1024
    body_seconds: float = 10.0
    stream_clients: int = 256
    stream_stall_seconds: float = 20.0  # a client that takes nothing for so long is cut off
    connections: int = 1024
    reads_per_second: float = 500.0  # per client address
    changes_per_second: float = 500.0
    failed_logins_per_second: float = 2.0
    processes: int = 256
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
class Settings:
    """Where the sidecar listens and keeps its files."""

    runtime_dir: pathlib.Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    allowed_hosts: frozenset[str] = frozenset()  # further names that the Host header may carry
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
