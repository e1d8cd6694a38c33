from __future__ import annotations

import dataclasses

import pytest

from daf.server.access.rates import Rates
from daf.server.settings import Settings
from tests.unit.server.fakes import RIGHT, FakePages, Running

CHANGES = [
    ("PUT", "/v1/budget", {"budget": "256MiB"}),
    ("POST", "/v1/compression", {"paused": True}),
    ("POST", "/v1/links", None),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic dDp0"}, {"Cookie": "token=" + "t" * 43}]
)
def test_without_the_token_nothing_changes(
    running: Running, pages: FakePages, change: tuple[str, str, object], headers: dict[str, str]
) -> None:
    method, path, body = change
    page = pages.add()
    running.tick()
    answer = running.client.request(method, path, json=body, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert "Bearer" in answer.headers["www-authenticate"]
    assert page.commands == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
@pytest.mark.parametrize("path", ["/", "/v1/stats", "/v1/nothing", "/metrics"])
def test_whatever_is_not_a_read_needs_the_token_wherever_it_goes(running: Running, method: str, path: str) -> None:
    assert running.client.request(method, path).status_code == 401


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8787", "http://127.0.0.1"]
)
def test_a_foreign_origin_may_neither_change_nor_read(running: Running, pages: FakePages, origin: str) -> None:
    page = pages.add()
    running.tick()
    answer = running.client.put("/v1/budget", json={"budget": "1GiB"}, headers={**RIGHT, "Origin": origin})
    assert answer.status_code == 403
    assert running.client.get("/v1/stats", headers={"Origin": origin}).status_code == 403
    assert page.commands == []


def test_the_page_s_own_origin_may_change(running: Running, pages: FakePages) -> None:
    pages.add()
    running.tick()
    headers = {**RIGHT, "Origin": "http://127.0.0.1:8787"}
    assert running.client.put("/v1/budget", json={"budget": "512MiB"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "", "169.254.169.254", "localhost:x", "[::2]"],
)
def test_a_rebound_name_is_refused(running: Running, pages: FakePages, host: str) -> None:
    page = pages.add()
    running.tick()
    for method, path in (("GET", "/v1/stats"), ("GET", "/"), ("PUT", "/v1/budget")):
        answer = running.client.request(method, path, headers={**RIGHT, "Host": host}, json={"budget": "1GiB"})
        assert answer.status_code == 421
    assert page.commands == []


@pytest.mark.parametrize("host", ["127.0.0.1:8787", "localhost", "LOCALHOST:1", "[::1]:8787"])
def test_the_names_of_this_machine_are_ours(running: Running, host: str) -> None:
    assert running.client.get("/healthz", headers={"Host": host}).status_code == 200


def test_listening_to_the_world_needs_the_token_for_reading_too(settings: Settings, pages: FakePages) -> None:
    exposed = Running(dataclasses.replace(settings, host="0.0.0.0"), pages)
    for path in ("/v1/stats", "/metrics", "/v1/openapi.json", "/v1/events"):
        assert exposed.client.get(path).status_code == 401
        assert exposed.client.get(path, headers=RIGHT).status_code == 200
    for host, code in (("192.168.1.5:8787", 200), ("[fe80::1]:8787", 200), ("evil.example:8787", 421)):
        assert exposed.client.get("/v1/stats", headers={**RIGHT, "Host": host}).status_code == code
    assert exposed.client.get("/").status_code == 200, "the page itself holds no data and asks for the token"


def test_a_one_time_code_opens_one_session(running: Running, pages: FakePages) -> None:
    pages.add()
    url = running.client.post("/v1/links", headers=RIGHT).json()["url"]
    code = url.partition("#code=")[2]
    key = running.client.post("/v1/login", json={"code": code}).json()["key"]
    assert running.client.post("/v1/login", json={"code": code}).status_code == 401, "once means once"
    running.tick()
    answer = running.client.put("/v1/budget", json={"budget": "1MiB"}, headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200


def test_no_answer_to_a_plain_read_holds_a_credential(running: Running, pages: FakePages) -> None:
    pages.add()
    running.tick()
    for path in ("/", "/metrics", "/healthz", "/v1/processes", "/v1/stats", "/v1/openapi.json"):
        answer = running.client.get(path)
        assert "t" * 43 not in answer.text
        assert "set-cookie" not in answer.headers


def test_a_large_body_is_refused(running: Running) -> None:
    answer = running.client.put("/v1/budget", content=b"x" * 20_000, headers=RIGHT)
    assert answer.status_code == 413

    def endless() -> object:
        for _ in range(100):
            yield b"x" * 1000

    assert running.client.put("/v1/budget", content=endless(), headers=RIGHT).status_code == 413


def test_guessing_codes_is_slowed_down(running: Running) -> None:
    codes = [running.client.post("/v1/login", json={"code": "guess"}).status_code for _ in range(40)]
    assert codes[0] == 401
    assert 429 in codes  # not all the rest: on a slow machine a try a second is let through again


def test_each_client_s_flood_is_its_own() -> None:
    rates = Rates(clock=lambda: 0.0)
    assert [rates.allow("read", "a", 5.0) for _ in range(11)] == [True] * 10 + [False]
    assert rates.allow("read", "b", 5.0)


def test_guessing_tokens_is_slowed_down(running: Running) -> None:
    codes = [running.client.put("/v1/budget", headers={"Authorization": "Bearer x"}).status_code for _ in range(40)]
    assert codes[0] == 401
    assert 429 in codes  # not all the rest: on a slow machine a try a second is let through again
