"""One view of all ranks of a job: those of this host from their pages, the others' from their sidecars."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from daf.server.fleet import figures
from daf.server.fleet.members import CRASHED, LIVE, Member, Reading, Selection
from daf.server.fleet.state import Sidecar
from daf.server.jobs.peers import Answered, Peer, PeerError
from daf.server.problems import ProblemError

UNREACHABLE = "unreachable"
MAX_MISSING = 1000  # ranks that are named as missing
SKEWED = ("budget_bytes", "resident_bytes", "compression_ratio", "measured_error_ratio", "steps", "step_seconds")


def members_of(sidecar: Sidecar, job: str) -> tuple[str, list[Member]]:
    """Return the job's id and its processes here, of a rank that was started again the last one."""
    found = sidecar.fleet.select(Selection(job=job))
    ids = sorted({member.job for member in found})
    if not found:
        raise ProblemError(404, "no-such-process", f"No process of this host is of job {job!r}")
    if len(ids) > 1:
        raise ProblemError(409, "ambiguous", f"{len(ids)} jobs are called {job!r}: name one", jobs=ids[:20])
    latest: dict[tuple[int, str], Member] = {}
    for member in sorted(found, key=lambda it: (it.state == LIVE, it.page.identity.started_at)):
        latest[member.rank, member.page.identity.device] = member
    return ids[0], sorted(latest.values(), key=lambda it: (it.rank, it.page.identity.device))


def rank_of(member: Member, reading: Reading) -> dict[str, Any]:
    """Return one rank's row."""
    values, derived = reading.values, figures.derived(reading.values)
    return {
        "rank": member.rank,
        "host": member.page.identity.host,
        "pod": member.page.identity.pod,
        "process": member.id,
        "device": member.page.identity.device,
        "state": member.state,
        "ending": str(member.ending) if member.ending else "",
        "world_size": max(1, member.page.identity.world_size),
        "budget_bytes": int(values.get("budget_bytes", 0)),
        "resident_bytes": int(values.get("resident_bytes", 0)),
        "least_bytes": figures.least_budget(values),
        "budget_used_ratio": round(derived["budget_used_ratio"], 6),
        "compression_ratio": round(derived["compression_ratio"], 6),
        "measured_error_ratio": float(values.get("measured_error_ratio", 0.0)),
        "steps": int(values.get("steps_total", 0)),
        "step_seconds": float(values.get("step_seconds", 0.0)),
        "heartbeat_age_seconds": round(reading.heartbeat_age_seconds, 3),
    }


def ranks_here(sidecar: Sidecar, job: str) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the job's id, its name, and the rows of its ranks on this host."""
    job_id, members = members_of(sidecar, job)
    return job_id, members[0].label, [rank_of(*found) for found in sidecar.fleet.read(members)]


async def job_view(sidecar: Sidecar, job: str) -> dict[str, Any]:
    """Return the whole job: what is here, what the others say, and for those that do not answer what they said last."""
    job_id, name, ranks = ranks_here(sidecar, job)
    here = {row["host"] for row in ranks}
    peers = [peer for peer in peers_of(sidecar, job_id) if peer.host not in here]
    found = await asyncio.gather(*(_of_peer(sidecar, job_id, peer) for peer in peers))
    own = {"address": sidecar.address, "state": "reachable", "error": "", "seen_at": sidecar.fleet.clock()}
    hosts = [{"host": host, **own} for host in sorted(here)]
    for host, rows in found:
        hosts.append(host)
        ranks += rows
    ranks.sort(key=lambda row: (row["rank"], row["device"]))
    return {"id": job_id, "name": name, "time": sidecar.fleet.clock(), "hosts": hosts, **summary(ranks), "ranks": ranks}


def peers_of(sidecar: Sidecar, job_id: str) -> list[Peer]:
    pages = [member.page.path for member in sidecar.fleet.members.values() if member.job == job_id]
    return sidecar.peers.of(job_id, pages)


def summary(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the ranks have in common: state, who is missing, who is slowest and tightest, and the skew."""
    live = [row for row in ranks if row["state"] == LIVE]
    world_size = max((row["world_size"] for row in ranks), default=1)
    known = {row["rank"] for row in ranks}
    missing = [rank for rank in range(min(world_size, 1_000_000)) if rank not in known]
    states = {row["state"] for row in ranks}
    stepping = [row for row in live if row["step_seconds"] > 0]
    return {
        "state": next((state for state in (CRASHED, LIVE, UNREACHABLE) if state in states), "finished"),
        "world_size": world_size,
        "num_live": len(live),
        "num_missing": len(missing),
        "missing": missing[:MAX_MISSING],
        "slowest": max(stepping, key=lambda row: row["step_seconds"])["rank"] if stepping else None,
        "tightest": max(live, key=lambda row: row["budget_used_ratio"])["rank"] if live else None,
        "skew": {name: _spread([float(row[name]) for row in live]) for name in SKEWED} if live else {},
    }


def _spread(numbers: list[float]) -> dict[str, float]:
    return {"min": min(numbers), "median": statistics.median(numbers), "max": max(numbers)}


async def _of_peer(sidecar: Sidecar, job_id: str, peer: Peer) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    now = sidecar.fleet.clock()
    about = {"host": peer.host, "address": peer.address}
    try:
        answer = await sidecar.peers.ask(peer, "GET", f"/v1/jobs/{quote(job_id, safe='')}/ranks")
        ranks = [dict(row) for row in answer["ranks"]]
        summary(ranks)  # a row without its members is no answer
    except (PeerError, KeyError, TypeError, ValueError) as error:
        last = sidecar.memory.last(job_id, peer.host)
        rows = [{**row, "state": UNREACHABLE} for row in last.ranks] if last else []
        return {**about, "state": UNREACHABLE, "error": str(error), "seen_at": last.time if last else None}, rows
    sidecar.memory.keep(job_id, peer.host, Answered(now, ranks))
    return {**about, "state": "reachable", "error": "", "seen_at": now}, ranks
