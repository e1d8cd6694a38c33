"""The one task of the sidecar that runs without being asked: look for processes, take samples, pass events on."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from typing import Any

from daf.server.fleet import figures
from daf.server.fleet.hub import Hub
from daf.server.fleet.members import CRASHED, FINISHED, LIVE, Fleet, Member, Reading, finite
from daf.server.fleet.pages import clean
from daf.server.settings import Settings

log = logging.getLogger("daf.server")
MAX_EVENTS_PER_TICK = 200
LOST_SECONDS = 60.0
WIDTHS_SECONDS = 20.0
# What happens thousands of times a second is in the figures; as events it would drive everything else out of the ring.
EVERYDAY_KINDS = frozenset({"alloc", "free", "stash", "release", "step"})
CLEAN_TICKS = 300


class Sampler:
    """Samples every `settings.sample_seconds`; what it finds goes to the histories and to the hub."""

    def __init__(self, fleet: Fleet, hub: Hub, settings: Settings) -> None:
        self._fleet = fleet
        self._hub = hub
        self._settings = settings
        self._waiting: list[tuple[str, dict[str, Any]]] = []  # events that are collected and not published yet

    async def run(self) -> None:
        """Tick until cancelled. A tick that fails is logged and the next one comes all the same."""
        for count in itertools.count():
            try:
                if count % CLEAN_TICKS == 0:
                    clean(self._settings.runtime_dir)
                self.tick()
            except Exception:
                log.exception("a sample could not be taken")
            await asyncio.sleep(self._settings.sample_seconds)

    def tick(self) -> None:
        """Take one sample of every process that lives, and the last one of each that has just ended."""
        shown = self.look()
        for member in list(self._fleet.members.values()):
            if member.state == LIVE or member.last is None:
                shown += self._sample(member)
        self._publish_in_order()
        if self._hub.num_clients:
            self._hub.show({"time": round(self._fleet.clock(), 3), "processes": shown})

    def look(self) -> list[dict[str, object]]:
        """Look who came and who ended, and tell the clients; returns the last figures of those that ended."""
        shown = []
        for member, what in self._fleet.refresh():
            if what in (FINISHED, CRASHED):
                shown += self._sample(member)
                self._fleet.keep_widths(member)
            self.announce(member, what)
        self._publish_in_order()
        return shown

    def forget_ended(self) -> list[Member]:
        """Forget all processes that have ended, with their files, and tell the clients."""
        forgotten = self._fleet.drop_ended()
        clean(self._settings.runtime_dir, all_ended=True)
        for member in forgotten:
            self.announce(member, "forgotten")
        self._publish_in_order()
        return forgotten

    def _sample(self, member: Member) -> list[dict[str, object]]:
        """Take a sample of one process and pass its events on; empty where its page cannot be read."""
        reading = member.read(self._fleet.clock(), self._settings.limits.slots)
        shown = [self._note(member, reading)] if reading is not None else []
        self._collect_events(member)
        return shown

    def _note(self, member: Member, reading: Reading) -> dict[str, object]:
        shown = figures.figures(member, reading)
        values: Any = shown["values"]
        if member.state == LIVE:
            history = self._fleet.history_of(member, dataclasses.replace(reading, values=values))
            history.add(reading.time, values)
            member.widths.add(reading.time, {row.slot_id: row.bits for row in reading.slots})
            if reading.time > member.widths_written_at + WIDTHS_SECONDS:
                self._fleet.keep_widths(member)
        return shown

    def pass_events_on(self, member: Member) -> None:
        """Move what is new in the member's event ring to the hub, but for what `member.told` says is told elsewhere."""
        self._collect_events(member)
        self._publish_in_order()

    def _collect_events(self, member: Member) -> None:
        try:
            last = member.page.last_event_id()
            events, lost = member.page.events(member.last_event_id, skip=EVERYDAY_KINDS)
        except Exception as error:
            member.error = f"{type(error).__name__}: {error}"[:300]
            return
        member.last_event_id = max([last, *(event.id for event in events)])
        member.num_lost_events += lost
        if member.num_lost_events and self._fleet.clock() > member.told_lost_at + LOST_SECONDS:
            before = events[0].time_seconds if events else self._fleet.clock()  # lost were those before what is left
            self._waiting.append(("lost", {"process": member.id, "count": member.num_lost_events, "time": before}))
            member.told_lost_at, member.num_lost_events = self._fleet.clock(), 0
        for event in events[-MAX_EVENTS_PER_TICK:]:
            if member.told is None or member.told not in ((event.kind, event.num_bytes), (event.kind, None)):
                self._waiting.append(("arena", {"process": member.id, **event_data(event)}))

    def _publish_in_order(self) -> None:
        """Publish what was collected from all processes, oldest first."""
        waiting, self._waiting = self._waiting, []
        for kind, data in sorted(waiting, key=lambda entry: entry[1]["time"]):
            self._hub.publish(kind, data)

    def announce(self, member: Member, what: str) -> None:
        """Tell the log and the clients that a process came, ended or was forgotten."""
        ended = member.ending.as_dict() if member.ending and member.state != LIVE else None
        words = str(member.ending) if what in (FINISHED, CRASHED) and member.ending else what
        log.info("process %s (%s): %s", member.id, member.label, words)
        data = {"process": member.id, "time": self._time_of(member, what), "what": what, "state": member.state}
        self._waiting.append(("process", {**data, "job": member.job, "ending": ended}))

    def _time_of(self, member: Member, what: str) -> float:
        """When it happened, which for a sidecar that comes late is not now."""
        now = self._fleet.clock()
        if what == "appeared":
            return min(member.page.identity.started_at or now, now)
        return member.ended_at or now if what in (FINISHED, CRASHED) else now


def event_data(event: Any) -> dict[str, Any]:
    """Return an arena event as JSON members; its own number becomes `arena_id`, for `id` is the stream's."""
    return {
        "time": round(event.time_seconds, 6),
        "kind": event.kind,
        "slot_id": event.slot_id,
        "num_bytes": event.num_bytes,
        "value": finite(event.value),
        "text": event.text,
        "arena_id": event.id,
    }
