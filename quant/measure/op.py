"""Fidelity by slot, measured in the ordinary backward: now and then one op is run once more, and nothing else.

Autograd numbers its nodes. The saves of one op carry the number of its node, so a save is known to belong to an op
while the forward runs, and the node itself is found from the output of the module around it. In a measured step

    forward    the saves of one op keep their exact contents beside the coded ones
    backward   just before its node runs, it is called over the exact contents, with the gradient that has arrived.
               No other node runs, and no hook. Then it runs, as ever, over the decoded ones.

The fidelity is the worst cosine between what both return (the gradients of the op's inputs and weights). It tells what
coding does in this op; noise that came with the gradient is in both runs, and so in neither's difference.

Every op is measured once, and again when its codecs or widths are planned anew, as soon as FIRST_SHARE of the time
(and, once in a run, the time of one step) allows; else in turn, as MAX_SHARE does. Whatever goes wrong costs the
measurement of that op, and is counted.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from daf.quant.encode.choice import EXACT
from daf.quant.measure.gradient import Monitor, compare
from daf.quant.observers import Observer
from daf.quant.saved.handles import HANDLES, Handle, Kept, Recomputed, View, slot_of
from daf.quant.torch_internals import current_node, is_packed_by_others, leaves_of, next_number, number_of

if TYPE_CHECKING:
    from daf.allocator import Arena
    from daf.kernels import Spec
    from daf.quant.saved.scope import Frame
    from daf.quant.saved.slots import Slot

FIRST_SHARE = 0.006  # of the processor's time, while ops are waiting for their first measurement or a new one
MAX_SHARE = 0.002  # ... once every op was measured
MIN_STEPS_BETWEEN = 4
LOOK_EVERY = 8  # steps between two looks for ops whose plan has changed
MAX_NODES = 512  # looked at in search of one
MAX_MISSES = 3
SAMPLED = 1 << 16  # elements of each gradient that are compared
ROOM = 2  # times the bytes of the exact contents: these, and what one more call returns
LOWEST = 1e-6  # 0 says "not measured"


Samples = dict[tuple[int, torch.Size], Tensor]


class Site:
    """One op of the model: the place of its first save, the slots that its saves come from, its last measurement.

    specs    of the slots, when they were measured: a measurement of other codecs and widths says nothing any more
    """

    __slots__ = ("fidelity", "is_off", "key", "num_misses", "slots", "specs")

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.slots: dict[int, Slot] = {}
        self.fidelity = 0.0
        self.specs: dict[int, Spec | None] = {}
        self.num_misses = 0
        self.is_off = False

    @property
    def is_worth_it(self) -> bool:
        return not self.is_off and any(not is_exact(slot) for slot in self.slots.values())

    @property
    def is_measured(self) -> bool:
        return bool(self.fidelity) and all(self.specs.get(slot.id) == slot.plan.spec for slot in self.slots.values())

    def note(self, fidelity: float) -> None:
        self.fidelity, self.num_misses = fidelity, 0
        self.specs = {slot.id: slot.plan.spec for slot in self.slots.values()}

    def miss(self) -> None:
        self.num_misses += 1
        self.is_off = self.num_misses >= MAX_MISSES


class SpotCheck(Observer):
    """Picks an op a step, keeps its exact contents, and compares. Works in the thread that begins the step."""

    def __init__(
        self,
        arena: Arena,
        monitor: Monitor,
        publish: Callable[[Slot], None],
        judge: Callable[[str, Iterable[Slot], float], object] = lambda _op, _slots, _error: None,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        self.is_on = False
        self.is_running = False
        self._is_learning = False
        self.num_measured = 0
        self.num_failures = 0
        self.arena = arena
        self._monitor = monitor
        self._publish = publish
        self._judge = judge
        self._clock = clock
        self._began = clock()
        self._spent_seconds = 0.0
        self._num_steps = 0
        self._measured_at = 0
        self._sites: dict[tuple[str, int], Site] = {}
        self._sites_of: dict[int, set[Site]] = {}
        self._due: deque[Site] = deque()
        self._turns: deque[Site] = deque()
        self._thread = 0
        self._number = -1  # of the node whose saves are coming in
        self._site: Site | None = None  # ... and its site, once one of them is in a slot
        self._target: Site | None = None
        self._taken_number = -1
        self._taken_in: Frame | None = None
        self._held_bytes = 0  # exact contents of the op that is measured
        self._num_handed = 0
        self._exact: Samples = {}  # samples of what the node has just made of exact contents

    # -- forward

    def begin_step(self, is_learning: bool) -> None:
        """Picks the op of this step. In a learning step new ops are noted as well."""
        self._let_go()
        self._thread = threading.get_ident()
        self._number = -1
        if not self._due and (self._is_learning or self._num_steps % LOOK_EVERY == 0):
            self._due.extend(site for site in self._turns if site.is_worth_it and not site.is_measured)
        self._num_steps += 1
        self._target = None if self._monitor.is_on else self._next()
        self._is_learning = is_learning
        self.is_on = is_learning or self._target is not None

    def see_save(self, frame: Frame, handle: Handle, tensor: Tensor) -> None:
        if not self._is_learning and (self._target is None or self._target.key[0] != frame.path):
            return
        if threading.get_ident() == self._thread:
            with self._careful():
                self._see(frame, handle, tensor)

    def _see(self, frame: Frame, handle: Handle, tensor: Tensor) -> None:
        number = next_number() - 1
        if number != self._number:
            self._number, self._site = number, None
        for slot in slots_behind(handle):
            if self._site is None:
                self._enter(self._at((frame.path, frame.order)), frame)
            assert self._site is not None
            self._site.slots[slot.id] = slot
            self._sites_of.setdefault(slot.id, set()).add(self._site)
        if number == self._taken_number:
            self._hold(handle, tensor)

    def leave_module(self, frame: Frame, _module: nn.Module, _args: tuple[Any, ...], output: object) -> None:
        """Its output leads to the node that was taken in it."""
        if self._taken_in is frame:
            with self._careful():
                self._attach(output)

    def begin_backward(self, roots: object) -> None:
        """For what was saved outside modules, or could not be found from their output."""
        if self._taken_in is not None:
            with self._careful():
                self._attach(roots)

    def _next(self) -> Site | None:
        """The op whose turn it is, when time allows: sooner where nothing is known of it."""
        elapsed = self._clock() - self._began
        allowed = FIRST_SHARE * elapsed + elapsed / max(1, self._num_steps) if self._due else MAX_SHARE * elapsed
        if self._spent_seconds > allowed:
            return None
        while self._due:
            site = self._due.popleft()
            if site.is_worth_it and not site.is_measured:
                return site
        if self._num_steps < self._measured_at + MIN_STEPS_BETWEEN:
            return None
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            if self._turns[-1].is_worth_it:
                return self._turns[-1]
        return None

    def _at(self, key: tuple[str, int]) -> Site:
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = Site(key)
            self._turns.append(site)
        return site

    def _enter(self, site: Site, frame: Frame) -> None:
        self._site = site
        if site is self._target and self._taken_number < 0:
            self._taken_number, self._taken_in, self._held_bytes = self._number, frame, 0

    def _hold(self, handle: Handle, tensor: Tensor) -> None:
        if not self._has_room(tensor.nbytes):
            self._taken_in = None  # not lost: its turn comes again
            self._let_go()
        elif isinstance(handle, View):
            self._monitor.keep(handle.stored, tensor)
        elif isinstance(handle, Kept):
            self._monitor.awaited.append(handle)

    def _has_room(self, num_bytes: int) -> bool:
        """Whether this much more fits, now and at the peak of a step like the last."""
        stats = self.arena.stats()
        taken = stats.get("resident_bytes", 0) - stats.get("cached_bytes", 0)
        self._held_bytes += num_bytes
        return stats["budget_bytes"] - max(taken, stats.get("last_step_held_bytes", 0)) >= ROOM * self._held_bytes

    def _attach(self, output: object) -> None:
        """Has the node measured when its turn in backward comes. The node is asked for then: held here, it would hold
        itself."""
        node = find_node(output, self._taken_number)
        if node is None:
            return
        self._taken_in = None
        is_python = isinstance(node, torch.autograd.function.BackwardCFunction)  # cannot be called alone
        if is_python or is_packed_by_others(node, HANDLES):
            self._give_up()
        else:
            node.register_prehook(self._run_exact)
            node.register_hook(self._compare)

    # -- backward

    def restore(self, handle: Handle) -> Tensor:
        """What unpack gives to a node that is measured. Counts as no use of what is stored."""
        while isinstance(handle, Kept) and handle.instead is not None:
            handle = handle.instead
        if isinstance(handle, View):
            exact = self._monitor.exact(handle.stored, handle.layout)
            if exact is not None:
                self._num_handed += 1
                return exact
            handle.stored.num_uses += 1
        return handle.restore()

    def _run_exact(self, grads: tuple[Tensor | None, ...]) -> None:
        node = current_node()
        if self._target is None or node is None or number_of(node) != self._taken_number or torch.is_grad_enabled():
            return
        began = self._clock()
        with self._careful():
            self._exact = self._call(node, grads)
        self._spent_seconds += self._clock() - began

    def _call(self, node: Any, grads: tuple[Tensor | None, ...]) -> Samples:
        """What the node makes of exact contents: no more than samples, whole results at once would raise the peak."""
        self.is_running, self._num_handed = True, 0
        try:
            outputs = some_of(node(*grads))
        finally:
            self.is_running = False
        return outputs if self._num_handed else {}

    def _compare(self, outputs: Any, _grads: Any) -> None:
        site, exact, self._exact = self._target, self._exact, {}
        if site is None or not exact:
            return
        began = self._clock()
        with self._careful():
            ours = some_of(outputs)
            pairs = [(ours[key], exact[key]) for key in ours.keys() & exact.keys()]
            self._note(site, worst_cosine(pairs))
            self._judge(site.key[0], site.slots.values(), worst_error(pairs))
        self._let_go()
        self._spent_seconds += self._clock() - began

    def _note(self, site: Site, fidelity: float) -> None:
        if not fidelity:
            site.miss()
            return
        site.note(fidelity)
        self.num_measured += 1
        self._measured_at = self._num_steps
        for slot in site.slots.values():
            slot.seen.fidelity = min(other.fidelity for other in self._sites_of[slot.id] if other.is_measured)
            self._publish(slot)

    def _let_go(self) -> None:
        """Ends the measurement of this step, done or not. Ops that are never found are given up."""
        site, was_lost = self._target, self._taken_in is not None
        self._target, self._taken_in, self._taken_number, self._exact = None, None, -1, {}
        self._monitor.forget()
        if site is not None and was_lost:
            site.miss()

    @contextlib.contextmanager
    def _careful(self) -> Iterator[None]:
        """What goes wrong here ends the measurement of this op, never the run."""
        try:
            yield
        except Exception:
            self._give_up()

    def _give_up(self) -> None:
        self.num_failures += 1
        if self._target is not None:
            self._target.is_off = True
        self._let_go()


def is_exact(slot: Slot) -> bool:
    plan = slot.plan
    return plan.spec is not None and (plan.spec.codec in EXACT or plan.is_not_worth_it) and not plan.is_recomputed


def slots_behind(handle: Handle) -> Iterable[Slot]:
    """The slots that a handle's content comes from: its own, or those of what it is worked out from."""
    slot = slot_of(handle)
    if slot is not None:
        yield slot
    elif isinstance(handle, View) and isinstance(handle.stored, Recomputed):
        for source in handle.stored.compute.sources:
            yield from slots_behind(source)


def find_node(output: object, number: int) -> Any:
    """The node with this number behind `output`. Nodes are numbered as they are made: none behind an older one."""
    leaves = leaves_of(output)
    nodes = [leaf.grad_fn for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    seen = set()
    for _ in range(MAX_NODES):
        if not nodes:
            return None
        node = nodes.pop()
        if number_of(node) == number:
            return node
        if number_of(node) > number and node not in seen:
            seen.add(node)
            nodes.extend(before for before, _ in node.next_functions if before is not None)
    return None


def some_of(outputs: Any) -> Samples:
    """A sample of each of a node's dense outputs, by place and shape: autograd has reduced what it broadcast before."""
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    dense = (item for item in enumerate(found) if item[1] is not None and item[1].layout is torch.strided)
    return {(place, one.shape): _sample(one.detach()) for place, one in dense}


def _sample(tensor: Tensor) -> Tensor:
    if tensor.numel() <= SAMPLED:
        return tensor
    flat = tensor if tensor.dim() == 1 else tensor.reshape(-1)
    return flat[:: tensor.numel() // SAMPLED | 1].clone()  # an odd stride meets every column


def worst_cosine(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Of gradients (ours, exact). 0 where there is nothing to compare."""
    cosines = [found.cosine for pair in pairs if math.isfinite((found := compare("", [pair])).norm)]
    return max(LOWEST, min(_or_lowest(cosine) for cosine in cosines)) if cosines else 0.0


def worst_error(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Largest relative error of gradients (ours, exact); infinite where ours are not finite and the exact ones are."""
    found = [one.error for pair in pairs if math.isfinite((one := compare("", [pair])).norm)]
    return max((error if math.isfinite(error) else math.inf for error in found), default=0.0)


def _or_lowest(cosine: float) -> float:
    return min(cosine, 1.0) if math.isfinite(cosine) else LOWEST
