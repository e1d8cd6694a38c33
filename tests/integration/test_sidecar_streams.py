"""The event stream over real sockets: many clients, slow ones, dead ones, and those that come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

from tests.integration.sidecar_tools import arena_process, runtime_folder, sidecar_process, wait_for


def request(path: str = "/v1/stream", **headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def open_stream(**headers: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(str(runtime_folder() / "sidecar.sock"))
    client.sendall(request(**headers))
    return client


def read_until(client: socket.socket, word: bytes) -> bytes:
    found = b""
    while word not in found:
        chunk = client.recv(65536)
        assert chunk, found
        found += chunk
    return found


def test_a_client_gets_figures_and_events_and_comes_back_for_what_it_missed() -> None:
    with arena_process(8 << 20) as child, sidecar_process() as (_sidecar, api):
        wait_for(lambda: api.processes()["processes"])
        with open_stream() as client:
            assert b"event: stats" in read_until(client, b"event: stats")
            api.put_budget("6MiB", pid=child.pid)
            text = read_until(client, b"event: change").decode()
        last_id = next(line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: "))
        api.put_budget("5MiB", pid=child.pid)
        with open_stream(**{"Last-Event-ID": last_id}) as client:
            text = read_until(client, b"5242880").decode()
        data = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
        ids = [event["id"] for event in data if "id" in event]
        assert ids == sorted(ids)
        assert ids[0] == int(last_id.rpartition("-")[2]) + 1


def test_two_hundred_clients_are_held_and_the_slow_ones_hurt_nobody() -> None:
    with arena_process(8 << 20), sidecar_process() as (_sidecar, api):
        wait_for(lambda: api.processes()["processes"])
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(open_stream()) for _ in range(200)]
            reading, _sleeping = clients[:100], clients[100:]
            for client in reading:
                read_until(client, b"event: stats")
            assert "daf_sidecar_stream_clients 200.0" in api.raw("/metrics").decode()
        wait_for(lambda: "daf_sidecar_stream_clients 0.0" in api.raw("/metrics").decode(), 30)


def test_one_client_too_many_is_told_so() -> None:
    with sidecar_process() as (_sidecar, api), contextlib.ExitStack() as stack:
        for _ in range(256):
            stack.enter_context(open_stream())
        wait_for(lambda: "daf_sidecar_stream_clients 256.0" in api.raw("/metrics").decode())
        with open_stream() as late:
            assert b"429" in read_until(late, b"too-many-clients")


def test_a_stream_ends_when_it_was_asked_to() -> None:
    async def read_all() -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(runtime_folder() / "sidecar.sock"))
        writer.write(request("/v1/stream?seconds=0.2", Connection="close"))
        found = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return found

    with sidecar_process():
        assert b"retry: 1000" in asyncio.run(read_all())
