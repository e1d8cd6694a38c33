"""A job on two hosts: network namespaces with two ranks each, a sidecar on each, Prometheus in a third."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from daf.server import Client
from tests.integration.sidecar_tools import end, wait_for
from tests.tools import require_tool

TOKEN = "the-secret-of-this-job"
PORT = 8787
RANK = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
import daf
with daf.Session(budget="64MiB", bits=4):
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    while True:
        optimizer.zero_grad()
        net(torch.randn(64, 64)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
"""
PROMETHEUS = """
global: { scrape_interval: 1s }
scrape_configs:
  - job_name: daf
    honor_labels: true
    authorization: { credentials: "%(token)s" }
    http_sd_configs:
      - url: "http://10.77.0.1:8787/v1/targets"
        refresh_interval: 1s
        authorization: { type: Bearer, credentials: "%(token)s" }
"""
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"


class Net:
    """Namespaces on one switch, which is a bridge in a namespace of its own."""

    def __init__(self) -> None:
        self._prefix = f"daf{os.getpid()}"
        self._names: list[str] = []

    def name(self, host: str) -> str:
        return f"{self._prefix}{host}"

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)

    def build(self, **addresses: str) -> None:
        switch = self.name("sw")
        self._add(switch)
        self.ip("-n", switch, "link", "add", "br0", "type", "bridge")
        self.ip("-n", switch, "link", "set", "br0", "up")
        for host, address in addresses.items():
            name = self.name(host)
            self._add(name)
            self.ip("-n", switch, "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", name)
            self.ip("-n", switch, "link", "set", host, "master", "br0", "up")
            self.ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")

    def _add(self, name: str) -> None:
        self.ip("netns", "add", name)
        self._names.append(name)
        self.ip("-n", name, "link", "set", "lo", "up")

    def link(self, host: str, state: str) -> None:
        """Plug the host's cable into the switch, or out."""
        self.ip("-n", self.name("sw"), "link", "set", host, state)

    def inside(self, host: str) -> list[str]:
        return ["ip", "netns", "exec", self.name(host)]

    def close(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


@pytest.fixture
def net() -> Iterator[Net]:
    require_tool("ip")
    net = Net()
    try:
        net.build(h0="10.77.0.1", h1="10.77.0.2", prom="10.77.0.3")
        yield net
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs the right to make network namespaces (root): {error.stderr!r}")
    finally:
        net.close()


@contextlib.contextmanager
def started(command: list[str], log: pathlib.Path, **environment: str) -> Iterator[subprocess.Popen[Any]]:
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **environment})
    try:
        yield child
    finally:
        end(child)


def host_environment(folder: pathlib.Path, host: str) -> dict[str, str]:
    runtime = folder / host
    return {
        "DAF_RUNTIME_DIR": str(runtime), "DAF_HOST": host, "DAF_JOB_TOKEN": TOKEN, "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
    }  # fmt: skip


@contextlib.contextmanager
def job_on(net: Net, folder: pathlib.Path) -> Iterator[None]:
    script = folder / "rank.py"
    script.write_text(RANK)
    with contextlib.ExitStack() as stack:
        for host, address in (("h0", "10.77.0.1"), ("h1", "10.77.0.2")):
            environment = host_environment(folder, host)
            serve = [sys.executable, "-m", "daf", "serve", "--host", address, "--plain-http", "--quiet"]
            stack.enter_context(started([*net.inside(host), *serve], folder / f"{host}.serve.log", **environment))
            launch = [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=night",
                "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400", f"--local-addr={address}",
                f"--rdzv-conf=is_host={int(host == 'h0')}", str(script),
            ]  # fmt: skip
            stack.enter_context(started([*net.inside(host), *launch], folder / f"{host}.job.log", **environment))
        yield


def fetched(net: Net, url: str) -> Any:
    done = subprocess.run(
        [*net.inside("prom"), sys.executable, "-c", FETCH, url], capture_output=True, text=True, check=False, timeout=30
    )
    return json.loads(done.stdout) if done.returncode == 0 else None


def ranks_in_prometheus(net: Net) -> list[tuple[str, str]]:
    query = quote('daf_budget_bytes{job="night"}')
    found = fetched(net, f"http://127.0.0.1:9090/api/v1/query?query={query}")
    series = found["data"]["result"] if found else []
    return sorted((one["metric"]["rank"], one["metric"]["host"]) for one in series)


def job_of(client: Client) -> Any:
    with contextlib.suppress(Exception):
        return client.job("night")
    return None


def is_whole(job: Any) -> bool:
    return bool(job) and job["num_live"] == 4 and not job["missing"]


@pytest.mark.slow
def test_two_hosts_are_one_job(net: Net, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus = require_tool("prometheus")
    (tmp_path / "prometheus.yml").write_text(PROMETHEUS % {"token": TOKEN})
    watch = [prometheus, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb"]
    with job_on(net, tmp_path), started([*net.inside("prom"), *watch], tmp_path / "prometheus.log"):
        monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path / "h0"))
        client = Client.find()
        wait_for(lambda: is_whole(job_of(client)), 120)
        places = [(str(row["rank"]), row["host"]) for row in client.job("night")["ranks"]]
        assert sorted(host for _, host in places) == ["h0", "h0", "h1", "h1"]
        wait_for(lambda: ranks_in_prometheus(net) == places, 30)

        answer = client.put_job_budget("32MiB", "night", wait=60)
        assert [row["state"] for row in answer.outcomes] == ["applied"] * 4
        assert len({row["reason"] for row in answer.outcomes}) == 1  # all say the same step
        assert {row["budget_bytes"] for row in client.job("night")["ranks"]} == {32 << 20}

        refused = client.put_job_budget("1KiB", "night", wait=60)
        assert refused.state == "refused"
        assert {row["budget_bytes"] for row in client.job("night")["ranks"]} == {32 << 20}

        net.link("h1", "down")
        cut_at = time.monotonic()
        lost = wait_for(lambda: (job := client.job("night"))["hosts"][1]["state"] == "unreachable" and job)
        print(f"the cut link was said after {time.monotonic() - cut_at:.2f} s")
        assert {(row["host"], row["state"]) for row in lost["ranks"]} == {("h0", "live"), ("h1", "unreachable")}
        during = client.put_job_budget("16MiB", "night", wait=5)
        assert during.state == "refused"
        assert any(row["host"] == "h1" and "cannot be reached" in row["reason"] for row in during.outcomes)

        net.link("h1", "up")
        back_at = time.monotonic()
        wait_for(lambda: is_whole(job_of(client)), 60)
        print(f"and was back {time.monotonic() - back_at:.2f} s after it was plugged in")
        steps = client.job("night")["skew"]["steps"]["min"]
        wait_for(lambda: client.job("night")["skew"]["steps"]["min"] > steps, 60)
        assert {row["budget_bytes"] for row in client.job("night")["ranks"]} == {32 << 20}
