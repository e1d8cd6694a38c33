"""The engine beside other processes: data loaders' workers, ranks of a distributed job."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

LOADER = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Augmented(Dataset):
    \"\"\"Uses autograd in the worker, as adversarial augmentation does.\"\"\"

    def __len__(self):
        return 4

    def __getitem__(self, index):
        from daf import session
        x = torch.full((64, 256), 0.5, requires_grad=True)
        (x * 1).exp().sum().backward()
        torch.testing.assert_close(x.grad, x.detach().exp(), rtol=0, atol=0)
        active = session.active()
        is_quiet = active is None or active.stats()["packs_total"] == 0 or sys.argv[1] == "fork"
        return x.detach(), is_quiet

if __name__ == "__main__":
    from daf import session
    net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    (net(torch.randn(256, 256))).sum().backward()
    before = session.active().stats()["coded_total"]
    for x, is_quiet in DataLoader(Augmented(), batch_size=2, num_workers=1, multiprocessing_context=sys.argv[1]):
        assert is_quiet.all()
        net(x).sum().backward()
    stats = session.active().stats()
    assert stats["coded_total"] > before and stats["failures_total"] == 0
    print("fine")
"""

RANK = """
import json
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import daf

torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))

def make(kind):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
    )
    if kind == "ddp":
        return DistributedDataParallel(net)
    for number in (0, 3, 5):
        fully_shard(net[number], mesh=mesh)
    return fully_shard(net, mesh=mesh)

def gradient(kind):
    net = make(kind)
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        net.zero_grad()
        net(torch.randn(512, 64)).square().mean().backward()
    grads = [parameter.grad for parameter in net.parameters()]
    return torch.cat([getattr(grad, "full_tensor", lambda: grad)().flatten() for grad in grads])

found = {}
for kind in ("ddp", "fsdp2"):
    plain = gradient(kind)
    with daf.Session(budget="64MiB", bits="lossless") as session:
        exact = gradient(kind)
        num_coded = session.stats()["coded_total"]
    with daf.Session(budget="64MiB", bits=2) as session:
        rough = gradient(kind)
        num_failures = session.stats()["failures_total"]
    found[kind] = {
        "is_equal": torch.equal(plain, exact),
        "cosine": nn.functional.cosine_similarity(plain, rough, dim=0).item(),
        "num_coded": num_coded,
        "num_failures": num_failures,
    }
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""


def run(arguments: list[str], **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTORCH_ALLOCATOR"}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_data_loaders_workers_are_left_alone(tmp_path: pathlib.Path, way: str) -> None:
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    settings = {"PYTORCH_ALLOCATOR": "daf", "DAF_BUDGET": "64MiB", "DAF_BITS": "2"}
    assert run([str(script), way], **settings).strip() == "fine"


def test_distributed_gradients_are_exact_when_lossless_and_close_at_two_bits(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    out = run(["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)])
    for kind, found in json.loads(out.strip().splitlines()[-1]).items():
        assert found["is_equal"], kind
        assert found["cosine"] > 0.9, kind
        assert found["num_coded"] > 0, kind
        assert found["num_failures"] == 0, kind
