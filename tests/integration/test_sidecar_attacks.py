"""What another user of the machine, or an unlucky file, does to the sidecar. The attacker is a user of its own where we
are root, as in CI."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from daf.server.access.tokens import read_token
from daf.server.process.runfile import read_whereabouts
from tests.integration.sidecar_tools import arena_process, end, runtime_folder, sidecar_process, wait_for

NOBODY = 65534
NUM_SLOW = 1100
# With all modules loaded: the interpreter may lie in a folder that others cannot enter.
AS_ANOTHER = f"""
import http.client, os, resource, socket, sys, time, encodings.idna, json
if os.geteuid() == 0:
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
"""
HOLD = """
port, number = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
def slow():
    one = socket.create_connection(("127.0.0.1", port), 10)
    one.sendall(b"GET /v1/stats HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nX-Slow: ")
    return one
held = [slow() for _ in range(number)]
print("held", flush=True)
sys.stdin.readline()
closed = 0
for one in held:
    one.setblocking(False)
    try:
        closed += one.recv(1) == b""
    except ConnectionResetError:
        closed += 1
    except BlockingIOError:
        pass
print(closed, flush=True)
"""
FLOOD = """
port = int(sys.argv[1])
codes = set()
for path, method, body in (("/v1/login", "POST", '{"code": "guess"}'), ("/v1/budget", "PUT", '{"budget": 1}')):
    for _ in range(60):
        to = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        to.request(method, path, body, {"Content-Type": "application/json", "Authorization": "Bearer guess"})
        codes.add(to.getresponse().status)
        to.close()
print(sorted(codes))
"""


@contextlib.contextmanager
def attacker(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another user, where we may start one."""
    command = [sys.executable, "-c", AS_ANOTHER + script, *map(str, arguments)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    with child:
        try:
            yield child
        finally:
            child.kill()


def sidecar_port() -> int:
    found = read_whereabouts(runtime_folder() / "sidecar.json")
    assert found is not None
    return int(urlsplit(found.address).port or 0)


def ask(port: int, method: str, path: str, *, with_token: bool, body: object = None) -> tuple[int, object]:
    """Ask by the port, as a browser would."""
    token = read_token(runtime_folder() / "sidecar.token")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if with_token else {})
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_slow_connections_lock_nobody_out_and_are_closed() -> None:
    with sidecar_process() as (_child, client), attacker(HOLD, sidecar_port(), NUM_SLOW) as slow:
        assert slow.stdout is not None
        assert slow.stdin is not None
        assert slow.stdout.readline() == "held\n"
        began = time.monotonic()
        assert client.get("/healthz")["status"] == "ok"
        assert ask(sidecar_port(), "GET", "/v1/stats", with_token=False)[0] == 200
        assert ask(sidecar_port(), "POST", "/v1/links", with_token=True)[0] == 200
        print(f"owner served in {time.monotonic() - began:.3f} s while {NUM_SLOW} slow connections are held")
        time.sleep(11.0)  # the header's time
        slow.stdin.write("\n")
        slow.stdin.flush()
        assert int(slow.stdout.readline()) == NUM_SLOW


def test_others_guesses_cost_the_owner_nothing() -> None:
    with sidecar_process() as (_child, client), arena_process():
        wait_for(lambda: client.processes()["processes"])
        link = client.page_link()
        with attacker(FLOOD, sidecar_port()) as flood:
            assert flood.stdout is not None
            assert flood.stdout.readline() == "[401, 429]\n"
        status, _ = ask(sidecar_port(), "PUT", "/v1/budget", with_token=True, body={"budget": "16MiB"})
        assert status in (200, 202)
        code = link.partition("#code=")[2]
        assert ask(sidecar_port(), "POST", "/v1/login", with_token=False, body={"code": code})[0] == 200


def test_command_lines_are_shown_to_their_owner_alone() -> None:
    with sidecar_process() as (_child, client), arena_process():
        wait_for(lambda: client.processes()["processes"])
        assert client.processes()["processes"][0]["argv"]
        for path in ("/v1/processes", "/v1/report"):
            for with_token in (False, True):
                _, found = ask(sidecar_port(), "GET", path, with_token=with_token)
                assert isinstance(found, dict)
                process = found["processes"][0] if "processes" in found else found["process"]
                assert bool(process["argv"]) is with_token


@pytest.mark.parametrize("suffix", [".stats", ".cmd", ".history", ".widths"])
def test_a_file_that_is_cut_off_kills_neither_the_sidecar_nor_the_run(suffix: str) -> None:
    with sidecar_process() as (sidecar, client), arena_process() as run:
        wait_for(lambda: client.processes()["processes"])
        wait_for(lambda: client.get("/v1/history")["times"])
        path = next(runtime_folder().glob("*.stats")).with_suffix(suffix)
        for num_bytes in (0, 100, 5000):
            with contextlib.suppress(FileNotFoundError):
                os.truncate(path, num_bytes)
            for route in ("/v1/processes", "/metrics", "/healthz"):
                client.raw(route)
            time.sleep(0.05)
        wait_for(lambda: client.processes()["processes"][0]["state"] == "live")
        assert (sidecar.poll(), run.poll()) == (None, None)
        assert client.put_budget("16MiB", wait=10).state == "applied"


@pytest.mark.parametrize("suffix", [".end", ".history", ".widths"])
def test_nested_json_is_an_error_of_its_file(suffix: str) -> None:
    with arena_process() as run:
        page = wait_for(lambda: next(runtime_folder().glob("*.stats"), None))
        run.kill()
        run.wait()
        page.with_suffix(suffix).write_bytes(b"[" * 100_000)
        with sidecar_process() as (sidecar, client):
            assert client.processes()["processes"][0]["state"] == "crashed"
            assert client.raw("/metrics")
            assert sidecar.poll() is None


def test_thousands_of_pages_cost_neither_descriptors_nor_the_sidecar() -> None:
    with arena_process():
        page = wait_for(lambda: next(runtime_folder().glob("*.stats"), None)).read_bytes()
        for number in range(3000):
            path = runtime_folder() / f"{900_000_000 + number}-1.stats"
            path.write_bytes(page if number < 50 else page[:100])
        with sidecar_process() as (sidecar, client):
            wait_for(lambda: any(one["state"] == "live" for one in client.processes()["processes"]))
            assert len(os.listdir(f"/proc/{sidecar.pid}/fd")) < 500


def test_a_shared_folder_is_refused_and_its_mode_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "daf", "serve", "--port", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "open to other users" in done.stderr
    assert tmp_path.stat().st_mode & 0o777 == 0o777


def test_being_reached_from_elsewhere_needs_a_certificate_or_a_word() -> None:
    command = [sys.executable, "-m", "daf", "serve", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "--plain-http" in done.stderr
    with subprocess.Popen(
        [*command, "--plain-http"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(2)]
        end(child)
    assert lines[1].startswith("open to  other machines")


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "daf", "serve", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


def test_the_working_folder_is_no_place_for_the_sidecar_s_modules(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uvicorn.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)
    script = """
import sys; sys.path.remove('')
from daf.server import Client, ensure_running
print(Client(ensure_running(port=0)).get('/healthz')['pid'])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    os.kill(int(done.stdout), 15)


def test_a_limit_on_addresses_is_named() -> None:
    script = "from daf.allocator import Arena; Arena(4 << 30)"
    limit = 3 << 30
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert "`ulimit -v` allows 3.00 GiB" in done.stderr
