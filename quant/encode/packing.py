"""Who packs a saved tensor, and when: the forward itself, a worker beside it, or the device that holds it.

The engine asks for one thing: `ticket = packer.submit(encode, tensor)`, and before it reads the stash
`ticket.wait()`, which returns what `encode(tensor)` returned or raises what it raised. Three ways stand behind it:

    inline   encode now, on the caller's thread; the ticket is done when submit returns
    worker   encode on a thread beside the forward; for tensors that the CPU can read
    device   queue the device's own kernels; the host goes on at once. What is on a device goes this way, always

`auto` tries the ways that apply, in turn, step by step, and stays with the fastest (packing_choice.py).
"""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from daf.errors import DafError
from daf.kernels.threads import limit_threads

if TYPE_CHECKING:
    import torch

Encode = Callable[["torch.Tensor"], Any]

MIN_WORKER_BYTES = 256 << 10  # below this, handing a tensor over costs about what encoding it does
MAX_PENDING_BYTES = 64 << 20
MAX_PENDING = 64


class TensorChangedError(DafError, RuntimeError):
    """A tensor was written in backend between its save and its packing: torch refuses the same at backward."""


class Ticket(Protocol):
    """One tensor on its way into its stash. Any thread may wait, any number of times."""

    def wait(self) -> Any:
        """Return what `encode` returned; raise what it raised."""

    def abandon(self) -> bool:
        """Say that nobody will read this; return whether nothing touches the stash any more.

        Work not begun is dropped. Work under way ends by itself, and what `encode` refers to lives until then. Never
        waits, so a destructor may call it.
        """


class Packer(Protocol):
    """Takes tensors to pack. `submit` may be called from many threads."""

    def submit(self, encode: Encode, tensor: torch.Tensor) -> Ticket:
        """Have `encode(tensor)` run, now or soon; `tensor` is let go of as soon as it has."""

    def drain(self) -> None:
        """Wait until nothing is pending; raise the first error that nobody has seen."""

    def step(self, seconds: float) -> None:
        """Hear that one training step took `seconds`; only `auto` listens."""

    def close(self) -> None:
        """Drain and stop. What is submitted afterwards is packed inline."""


class DoneTicket:
    """Work that ended inside `submit`."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        return self._value

    def abandon(self) -> bool:
        return True


class InlinePacker:
    """Pack at once: nothing pending, nothing kept, errors raised from the very operation that saved the tensor."""

    def submit(self, encode: Encode, tensor: torch.Tensor) -> Ticket:
        return DoneTicket(encode(tensor))

    def drain(self) -> None:
        pass

    def step(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class _Job:
    """A ticket that a worker or an impatient waiter carries out, whoever claims it first.

    Owns the raw tensor from submit to the end of encode and not a moment longer: autograd keeps the ticket until
    backward, so a reference left here would undo the whole saving.
    """

    __slots__ = ("_claim", "_done", "_encode", "_error", "_tensor", "_value", "_version", "num_bytes", "seen")

    def __init__(self, encode: Encode, tensor: torch.Tensor) -> None:
        self.num_bytes = tensor.nbytes
        self.seen = False  # whether a reader was told how it ended
        self._encode: Encode | None = encode
        self._tensor: torch.Tensor | None = tensor
        self._version = _version(tensor)
        self._claim = threading.Lock()
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> bool:
        """Encode unless somebody else does or did; return whether this call was the one."""
        if not self._claim.acquire(blocking=False):
            return False
        try:
            self._value = self._run()
        except BaseException as error:  # kept for the threads that wait
            self._error = error
        self._finish()
        return True

    def _run(self) -> Any:
        assert self._encode is not None
        assert self._tensor is not None
        value = self._encode(self._tensor)
        if _version(self._tensor) != self._version:
            raise TensorChangedError(
                f"a saved tensor of shape {tuple(self._tensor.shape)} was modified by an in-place operation before it "
                "was packed; save a clone, or pack inline (packing='inline')"
            )
        return value

    def _finish(self) -> None:
        self._encode = self._tensor = None
        self._done.set()

    def wait(self) -> Any:
        self.run()
        self._done.wait()
        self.seen = True
        if self._error is not None:
            raise self._error
        return self._value

    def abandon(self) -> bool:
        self.seen = True
        if self._claim.acquire(blocking=False):
            self._error = DafError("this tensor's packing was abandoned")
            self._finish()
        return self._done.is_set()

    @property
    def unseen_error(self) -> BaseException | None:
        """What went wrong and nobody was told. A changed tensor concerns its reader alone, and it may never be read."""
        return None if self.seen or isinstance(self._error, TensorChangedError) else self._error


class WorkerPacker:
    """Pack on a thread beside the forward, first come first served.

    Bounded by raw bytes and by count. A tensor that finds the queue full is packed by its submitter: the forward then
    pays for one encode, while its tensor is still in the cache, instead of waiting for a queue to move. A reader that
    comes before the worker does the work itself, so a late or dead worker delays nobody and no wait can deadlock.
    """

    def __init__(self, *, max_pending_bytes: int = MAX_PENDING_BYTES, min_bytes: int = MIN_WORKER_BYTES) -> None:
        if max_pending_bytes <= 0:
            raise ValueError(f"max_pending_bytes is {max_pending_bytes}; use inline packing to hold nothing back")
        self._max_pending_bytes = max_pending_bytes
        self._min_bytes = min_bytes
        self._inline = InlinePacker()
        self._changed = threading.Condition()
        self._queue: collections.deque[_Job] = collections.deque()
        self._pending_bytes = 0  # raw bytes queued or being packed by the worker
        self._pending = 0
        self._failed: _Job | None = None  # the first whose error nobody has seen
        self._thread: threading.Thread | None = None
        self._thread_pid = 0
        self._closed = False

    def submit(self, encode: Encode, tensor: torch.Tensor) -> Ticket:
        self._raise_unseen()
        if tensor.nbytes < self._min_bytes or not self._admit(tensor.nbytes):
            return self._inline.submit(encode, tensor)
        job = _Job(encode, tensor)
        with self._changed:
            self._queue.append(job)
            self._changed.notify()
        return job

    def _admit(self, num_bytes: int) -> bool:
        with self._changed:
            forked = self._thread is not None and self._thread_pid != os.getpid()
            fits = self._pending < MAX_PENDING and self._pending_bytes + num_bytes <= self._max_pending_bytes
            if self._closed or forked or not fits:
                return False
            self._pending += 1
            self._pending_bytes += num_bytes
            if self._thread is None:
                self._start()
            return True

    def _start(self) -> None:
        self._thread_pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name="daf-packer", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        limit_threads(1)  # a team of its own would fight torch's for the same cores
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                job = self._queue.popleft()
            job.run()
            self._retire(job)
            del job  # an idle worker must hold nothing

    def _retire(self, job: _Job) -> None:
        with self._changed:
            self._pending -= 1
            self._pending_bytes -= job.num_bytes
            if self._failed is None and job.unseen_error is not None:
                self._failed = job
            self._changed.notify_all()

    def _raise_unseen(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None and (error := failed.unseen_error) is not None:
            failed.seen = True
            raise error

    @property
    def pending_bytes(self) -> int:
        """Raw bytes that wait to be packed or are being packed: what this way of packing costs in memory."""
        return self._pending_bytes

    def drain(self) -> None:
        if self._thread_pid == os.getpid():
            with self._changed:
                self._changed.wait_for(lambda: self._pending == 0)
        self._raise_unseen()

    def step(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread_pid == os.getpid():
            self._thread.join()
        self._raise_unseen()


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
