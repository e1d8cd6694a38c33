"""One saved tensor: processor time of forward and of backward over no hooks, each divided by the number of saves."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor, nn

import daf
from benchmarks.overhead.peers import PEERS
from benchmarks.tools.report import Row
from daf.kernels import HostPlanes

KIB = 1 << 10
SMALL_BYTES = KIB  # kept exact: too small to be coded
SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB)
BITS = 2
CHAIN_BYTES = 64 << 20  # that a chain saves at most
MAX_SAVES = 400

Times = tuple[float, float]  # microseconds a save, forward and backward


def chain(x: Tensor, num_saves: int, weight: Tensor | None = None) -> Times:
    """A chain of sines saves what it is given; one of products with a frozen weight saves the weight."""
    began = time.process_time()
    y = x
    for _ in range(num_saves):
        y = y.sin() if weight is None else y * weight
    total = y.sum()
    middle = time.process_time()
    total.backward()
    ended = time.process_time()
    return (middle - began) / num_saves * 1e6, (ended - middle) / num_saves * 1e6


def measure(name: str, num_bytes: int, rounds: int, *, is_parameter: bool = False) -> Row:
    x = torch.randn(num_bytes // 4, requires_grad=True)
    weight = nn.Parameter(torch.ones(num_bytes // 4), requires_grad=False) if is_parameter else None
    num_saves = max(8, min(MAX_SAVES, CHAIN_BYTES // num_bytes))
    times: dict[str, list[Times]] = {peer: [] for peer in (*PEERS, "daf")}
    with daf.Session(bits=BITS, budget="2GiB") as session:
        for number in range(rounds + 2):
            session.engine.remove()
            chain(x, num_saves, weight)  # whoever is next finds memory that was touched
            for peer, context in PEERS.items():
                with context():
                    found = chain(x, num_saves, weight)
                times[peer] += [found] if number > 1 else []
            session.engine.install()
            chain(x, num_saves, weight)  # begins a step, which is no part of a save
            found = chain(x, num_saves, weight)
            times["daf"] += [found] if number > 1 else []
        codec = codec_microseconds(session.engine, x)
    return {"save": name, "bytes": num_bytes, **_over_plain(times), "codec": codec}


def _over_plain(times: dict[str, list[Times]]) -> Row:
    row: Row = {}
    for peer, found in times.items():
        if peer != "plain":
            pairs = list(zip(found, times["plain"], strict=True))
            row[f"{peer}_forward"] = statistics.median(ours[0] - plain[0] for ours, plain in pairs)
            row[f"{peer}_backward"] = statistics.median(ours[1] - plain[1] for ours, plain in pairs)
    row["daf_of_no_op"] = _total(row, "daf") / max(_total(row, "no_op"), 1e-9)
    return row


def _total(row: Row, peer: str) -> float:
    return float(row[f"{peer}_forward"] + row[f"{peer}_backward"])


def codec_microseconds(engine: daf.quant.Engine, x: Tensor) -> float | None:
    """What encoding and decoding such a tensor take by themselves; None where it is not coded."""
    plans = (plan for slot in engine.slots() for plan in slot.plan.by_size.values() if plan is not None)
    plan = next(plans, None)
    if plan is None:
        return None
    planes = HostPlanes(plan.coder.stream_bytes)
    source, target = x.detach(), torch.empty_like(x)
    times = []
    for _ in range(21):
        began = time.process_time()
        plan.coder.encode(source.data_ptr(), planes.address)
        plan.coder.decode(target.data_ptr(), planes.address)
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e6
