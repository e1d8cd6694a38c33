"""The parts of a running sidecar, handed to routes as one argument."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from daf.allocator.place import find_place
from daf.server.access.audit import Audit
from daf.server.access.rates import Rates
from daf.server.access.tokens import Keyring
from daf.server.fleet.hub import Hub
from daf.server.fleet.members import Discover, Fleet
from daf.server.fleet.sampler import Sampler
from daf.server.jobs.peers import Memory, Peers
from daf.server.metrics import FleetCollector
from daf.server.settings import Settings


@dataclass(slots=True)
class Sidecar:
    """Everything that lives as long as the sidecar does."""

    settings: Settings
    keyring: Keyring
    fleet: Fleet
    hub: Hub
    sampler: Sampler
    audit: Audit
    rates: Rates
    metrics: FleetCollector
    peers: Peers
    memory: Memory = field(default_factory=Memory)
    host: str = ""
    address: str = ""  # known once it listens
    waits: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    @classmethod
    def build(
        cls, settings: Settings, token: str, discover: Discover, *, keeps_history: bool = True, job_token: str = ""
    ) -> Sidecar:
        """`keeps_history`: in files that outlive the sidecar. What others kept is read in any case."""
        fleet = Fleet(discover, limits=settings.limits, history_dir=settings.runtime_dir, keeps_history=keeps_history)
        hub = Hub(settings.limits.events)
        return cls(
            settings=settings,
            keyring=Keyring(token, job_token),
            fleet=fleet,
            hub=hub,
            sampler=Sampler(fleet, hub, settings),
            audit=Audit(settings.audit_path),
            rates=Rates(time.monotonic),
            peers=Peers(job_token),
            host=find_place().host,
            metrics=FleetCollector(fleet, hub),
            waits=asyncio.Semaphore(settings.limits.pending_waits),
        )
