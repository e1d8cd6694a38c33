from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

from tests.integration.sidecar_tools import end, sidecar_process, wait_for

RANK = """
import torch
import torch.distributed as dist
import daf

dist.init_process_group("gloo")
with daf.Session(budget="32MiB", bits=4) as session:
    model = torch.nn.Linear(64, 64)
    while True:
        model(torch.randn(64, 64)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
"""


def test_the_ranks_of_a_job_are_one_job_and_take_one_change(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    with sidecar_process() as (_child, client):
        job = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            found = wait_for(lambda: both_ranks(client), 120)
            assert [one["rank"] for one in found["processes"]] == [0, 1]
            assert len(found["jobs"]) == 1
            name = found["jobs"][0]["id"]
            answer = client.put_budget("16MiB", job=name, wait=20)
            assert [outcome["state"] for outcome in answer.outcomes] == ["applied"] * 2
            budgets = [one["budget_bytes"] for one in client.get("/v1/budget", job=name)["processes"]]
            assert budgets == [16 << 20] * 2
            only = client.put_budget("20MiB", job=name, rank=1, wait=20)
            assert len(only.outcomes) == 1
        finally:
            end(job)


def both_ranks(client: Any) -> Any:
    found = client.processes()
    return found if len([one for one in found["processes"] if one["state"] == "live"]) == 2 else None
