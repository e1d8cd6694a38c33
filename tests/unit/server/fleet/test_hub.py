from __future__ import annotations

import json

from daf.server.fleet.hub import Hub


def events_in(chunk: bytes) -> list[tuple[str, str, dict[str, object]]]:
    """Return (event name, id, data) of each event in a piece of the stream."""
    found = []
    for frame in chunk.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if ": " in line)
        if "data" in lines:
            found.append((lines["event"], lines.get("id", ""), json.loads(lines["data"])))
    return found


def numbers(chunk: bytes) -> list[object]:
    return [data["n"] for _kind, _id, data in events_in(chunk) if "n" in data]


def test_a_client_gets_what_happens_after_it_came() -> None:
    hub = Hub(10)
    hub.publish("arena", {"n": 1})
    cursor = hub.cursor(None)
    hub.publish("arena", {"n": 2})
    assert numbers(hub.take(cursor)) == [2]
    assert hub.take(cursor) == b""


def test_a_client_that_comes_back_gets_what_it_missed() -> None:
    hub = Hub(10)
    first = hub.cursor(None)
    hub.publish("arena", {"n": 1})
    last_id = events_in(hub.take(first))[-1][1]
    hub.publish("arena", {"n": 2})
    hub.publish("arena", {"n": 3})
    assert numbers(hub.take(hub.cursor(last_id))) == [2, 3]


def test_a_client_of_an_earlier_sidecar_gets_all_that_is_known() -> None:
    hub = Hub(10, epoch="new")
    hub.publish("arena", {"n": 1})
    assert numbers(hub.take(hub.cursor("old-77"))) == [1]


def test_an_id_that_was_never_given_does_no_harm() -> None:
    hub = Hub(10, epoch="e")
    hub.publish("arena", {"n": 1})
    for odd in ("e-999999", "e--5", "e-x", "", "-", "e-" + "9" * 60, "e-٣"):
        hub.take(hub.cursor(odd))
        assert hub.cursor(odd).next_number <= hub.next_number


def test_a_client_that_falls_behind_is_told_how_much_it_lost() -> None:
    hub = Hub(4)
    cursor = hub.cursor(None)
    for n in range(10):
        hub.publish("arena", {"n": n})
    found = events_in(hub.take(cursor))
    assert found[0][0] == "lost"
    assert found[0][2] == {"count": 6}
    assert [data["n"] for _k, _i, data in found[1:]] == [6, 7, 8, 9]


def test_figures_are_never_queued() -> None:
    hub = Hub(4)
    cursor = hub.cursor(None)
    for n in range(100):
        hub.show({"n": n})
    assert numbers(hub.take(cursor)) == [99]


def test_events_are_found_by_number() -> None:
    hub = Hub(4)
    for n in range(10):
        hub.publish("arena", {"n": n})
    found, lost = hub.since(9, 100)
    assert [event["n"] for event in found] == [8, 9]
    assert lost == 0
    found, lost = hub.since(0, 2)
    assert [event["n"] for event in found] == [6, 7]
    assert lost == 6
