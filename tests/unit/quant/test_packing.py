"""One seam, three ways: every packer gives the same results, holds no raw tensor afterwards and hides no error."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from daf.quant.encode.packing import InlinePacker, Packer, TensorChangedError, WorkerPacker
from daf.quant.encode.packing_choice import AutoPacker, make_packer

MAKERS: dict[str, Callable[[], Packer]] = {
    "inline": InlinePacker,
    "worker": lambda: WorkerPacker(min_bytes=0),
    "device": InlinePacker,
    "auto": lambda: AutoPacker({"inline": InlinePacker(), "worker": WorkerPacker(min_bytes=0)}),
}


@pytest.fixture(params=sorted(MAKERS))
def packer(request: pytest.FixtureRequest) -> Iterator[Packer]:
    packer = MAKERS[request.param]()
    yield packer
    packer.close()


def total(tensor: torch.Tensor) -> float:
    return float(tensor.sum())


class Gate:
    """An encode that waits until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, tensor: torch.Tensor) -> float:
        self.entered.set()
        assert self.open.wait(30)
        return total(tensor)


def test_a_ticket_gives_what_encode_returned_however_often_it_is_asked(packer: Packer) -> None:
    tickets = [packer.submit(total, torch.full((1000,), float(value))) for value in range(50)]
    for value, ticket in reversed(list(enumerate(tickets))):
        assert ticket.wait() == 1000.0 * value
        assert ticket.wait() == 1000.0 * value


def test_after_packing_nothing_holds_the_raw_tensor(packer: Packer) -> None:
    tensor = torch.ones(1000)
    gone = weakref.ref(tensor)
    ticket = packer.submit(total, tensor)
    del tensor
    assert ticket.wait() == 1000.0
    packer.drain()
    gc.collect()
    assert gone() is None


def test_an_error_in_encode_reaches_the_user(packer: Packer) -> None:
    def fail(_tensor: torch.Tensor) -> None:
        raise ZeroDivisionError("in encode")

    with pytest.raises(ZeroDivisionError, match="in encode"):
        packer.submit(fail, torch.ones(10)).wait()
    packer.drain()


def test_many_threads_may_submit_at_once(packer: Packer) -> None:
    sums: list[float] = []

    def submit_some() -> None:
        sums.append(sum(packer.submit(total, torch.ones(100)).wait() for _ in range(50)))

    threads = [threading.Thread(target=submit_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [5000.0] * 4


def test_submit_to_a_worker_returns_before_the_tensor_is_packed() -> None:
    packer, gate = WorkerPacker(min_bytes=0), Gate()
    ticket = packer.submit(gate, torch.ones(10))
    assert gate.entered.wait(30)
    assert packer.pending_bytes == 40
    gate.open.set()
    assert ticket.wait() == 10.0
    packer.drain()
    assert packer.pending_bytes == 0
    packer.close()


def test_a_full_queue_makes_the_submitter_pack_its_own_tensor() -> None:
    packer, gate = WorkerPacker(min_bytes=0, max_pending_bytes=100), Gate()
    waiting = packer.submit(gate, torch.ones(20))
    threads: list[int] = []
    packer.submit(lambda _tensor: threads.append(threading.get_ident()), torch.ones(20))
    assert threads == [threading.get_ident()]
    assert packer.pending_bytes == 80
    gate.open.set()
    assert waiting.wait() == 20.0
    packer.close()


def test_a_reader_that_comes_before_the_worker_does_the_work() -> None:
    packer, gate = WorkerPacker(min_bytes=0), Gate()
    packer.submit(gate, torch.ones(10))
    assert gate.entered.wait(30)
    threads: list[int] = []
    packer.submit(lambda _tensor: threads.append(threading.get_ident()), torch.ones(10)).wait()
    assert threads == [threading.get_ident()]
    gate.open.set()
    packer.close()


def test_small_tensors_stay_on_the_callers_thread() -> None:
    packer = WorkerPacker(min_bytes=1000)
    assert packer.submit(lambda _tensor: threading.get_ident(), torch.ones(10)).wait() == threading.get_ident()
    packer.close()


def test_a_worker_refuses_a_tensor_that_was_written_in_place_meanwhile() -> None:
    packer, gate = WorkerPacker(min_bytes=0), Gate()
    tensor = torch.ones(10)
    ticket = packer.submit(gate, tensor.detach())
    assert gate.entered.wait(30)
    tensor.add_(1)
    gate.open.set()
    packer.drain()  # a tensor that is never read again may change as it likes
    with pytest.raises(TensorChangedError, match=r"shape \(10,\) was modified by an in-place operation"):
        ticket.wait()
    packer.close()


def test_an_error_whose_ticket_nobody_reads_is_raised_by_the_next_submit() -> None:
    packer, done = WorkerPacker(min_bytes=0), threading.Event()

    def fail(_tensor: torch.Tensor) -> None:
        done.set()
        raise ZeroDivisionError("in encode")

    packer.submit(fail, torch.ones(10))
    assert done.wait(30)
    with pytest.raises(ZeroDivisionError):
        packer.drain()
    assert packer.submit(total, torch.ones(10)).wait() == 10.0
    packer.close()


def test_abandoned_work_is_dropped_unless_it_has_begun() -> None:
    packer, gate, ran = WorkerPacker(min_bytes=0), Gate(), []
    begun = packer.submit(gate, torch.ones(10))
    assert gate.entered.wait(30)
    queued = torch.ones(10)
    gone = weakref.ref(queued)
    packer.submit(lambda _tensor: ran.append(1), queued).abandon()
    del queued
    assert gone() is None  # nothing holds what nobody will read
    assert not begun.abandon()
    gate.open.set()
    packer.close()
    assert ran == []
    assert packer.pending_bytes == 0


def test_a_closed_worker_packs_inline() -> None:
    packer = WorkerPacker(min_bytes=0)
    packer.submit(total, torch.ones(10)).wait()
    packer.close()
    assert packer.submit(lambda _tensor: threading.get_ident(), torch.ones(10)).wait() == threading.get_ident()


@pytest.mark.parametrize(("worker_seconds", "way"), [(0.5, "worker"), (0.99, "inline"), (2.0, "inline")])
def test_auto_stays_with_the_way_whose_steps_were_clearly_fastest(worker_seconds: float, way: str) -> None:
    packer = AutoPacker({"inline": InlinePacker(), "worker": WorkerPacker()})
    tried = []
    while not packer.is_settled:
        tried.append(packer.way)
        packer.step(worker_seconds if packer.way == "worker" else 1.0)
    assert packer.way == way
    assert tried[2:] == ["inline", "worker"] * 5
    packer.close()


def test_ways_that_cannot_work_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="packing is 'gpu'; it is one of auto, inline, worker, device"):
        make_packer("gpu")
    with pytest.raises(ValueError, match="needs memory that the CPU can read, and cuda's is not"):
        make_packer("worker", device="cuda", shares_memory=False)


def test_a_device_without_shared_memory_packs_itself_when_left_to_choose() -> None:
    assert isinstance(make_packer("auto", device="cuda", shares_memory=False), InlinePacker)
    assert make_packer("auto", device="cuda", shares_memory=True).way == "inline"  # type: ignore[attr-defined]
