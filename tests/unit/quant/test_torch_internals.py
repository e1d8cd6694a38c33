"""Private names of torch: which the installed one has, and what DAF does where it has not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from daf.quant import torch_internals
from daf.quant.torch_internals import Internal, internals


@pytest.mark.parametrize("internal", internals(), ids=lambda internal: internal.name)
def test_the_installed_torch_has_each_internal(internal: Internal):
    if internal.is_for_cuda and torch.version.cuda is None:
        pytest.skip("needs a torch built for CUDA")
    assert internal.is_here, f"{internal.purpose}; lost without it: {internal.loss}"


def test_every_internal_says_what_it_is_for_and_what_is_lost_without_it():
    assert all(len(internal.purpose) > 10 and len(internal.loss) > 10 for internal in internals())


def test_nothing_is_missing_from_the_pinned_torch():
    assert torch_internals.missing() == []


def test_a_name_that_torch_does_not_have_is_missing_and_raises_nothing():
    assert not Internal("torch._C._no_such_thing.at_all", "a test of a name", "nothing is lost").is_here


ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "name", ["_saved_tensors_default_hooks", "_current_autograd_node", "_get_sequence_nr", "DispatchKey", "_op_dk"]
)
def test_private_names_stand_in_one_module(name):
    found = subprocess.run(
        ["grep", "-rl", "--include=*.py", name, "quant", "daf"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == ["quant/torch_internals.py"]


class _Handle:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class _Hooks:
    """A pair of hooks that counts how often it is asked to unpack."""

    def __init__(self, kind: type = _Handle) -> None:
        self.kind = kind
        self.num_unpacks = 0

    def pack(self, tensor: torch.Tensor) -> _Handle:
        return self.kind(tensor.detach())

    def unpack(self, packed: _Handle) -> torch.Tensor:
        self.num_unpacks += 1
        return packed.tensor


class _Theirs:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


OURS = (_Handle,)


def _handles(node: object) -> list[tuple[str, _Handle]]:
    return list(torch_internals.saved_handles(node, OURS, torch_internals.saved_fields(node)))


def _exp(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def test_a_saved_handle_is_found_without_running_any_hook():
    x, ours = torch.ones(3, requires_grad=True), _Hooks()
    with saved_tensors_hooks(ours.pack, ours.unpack):
        node = x.exp().grad_fn
    handle = torch_internals.saved_handle(node, "result", OURS)
    assert torch.equal(handle.tensor, x.detach().exp())
    assert _handles(node) == [("result", handle)]
    assert torch_internals.saved_handle(node, "no_such_field", OURS) is None
    assert ours.num_unpacks == 0


def test_what_other_hooks_or_none_packed_is_not_found_and_not_run():
    x, theirs = torch.ones(3, requires_grad=True), _Hooks(_Theirs)
    with saved_tensors_hooks(theirs.pack, theirs.unpack):
        node = x.exp().grad_fn
    assert torch_internals.saved_handle(node, "result", OURS) is None
    assert torch_internals.saved_handle(x.exp().grad_fn, "result", OURS) is None
    assert theirs.num_unpacks == 0


def test_a_checkpointed_region_is_not_disturbed():
    x, ours = torch.ones(3, requires_grad=True), _Hooks()
    with saved_tensors_hooks(ours.pack, ours.unpack):
        y = checkpoint(_exp, x, use_reentrant=False)
    assert torch_internals.saved_handle(y.grad_fn, "result", OURS) is None
    y.sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_a_released_handle_is_nothing():
    x, ours = torch.ones(3, requires_grad=True), _Hooks()
    with saved_tensors_hooks(ours.pack, ours.unpack):
        y = x.exp()
    node = y.grad_fn
    y.sum().backward()
    assert torch_internals.saved_handle(node, "result", OURS) is None


def test_saved_lists_of_tensors_give_every_handle():
    x, ours = torch.ones(3, 3, requires_grad=True), _Hooks()
    with saved_tensors_hooks(ours.pack, ours.unpack):
        node = x[torch.tensor([0, 1]), torch.tensor([1, 2])].grad_fn
    assert [name for name, _ in _handles(node)] == ["indices", "indices"]


def test_hooks_go_on_and_off_a_thread():
    ours = _Hooks()
    torch_internals.push_hooks(ours.pack, ours.unpack)
    try:
        assert torch_internals.top_hooks() == (ours.pack, ours.unpack)
    finally:
        torch_internals.pop_hooks()
    assert torch_internals.top_hooks() is None


def test_hooks_go_on_and_off_without_the_private_names(monkeypatch):
    monkeypatch.setattr(torch_internals, "_push", None)
    monkeypatch.setattr(torch_internals, "_pop", None)
    test_hooks_go_on_and_off_a_thread()


def test_without_raw_saves_nothing_is_read(monkeypatch):
    monkeypatch.setattr(torch_internals, "_raw_hook", None)
    ours = _Hooks()
    with saved_tensors_hooks(ours.pack, ours.unpack):
        node = torch.ones(3, requires_grad=True).exp().grad_fn
    assert torch_internals.saved_handle(node, "result", OURS) is None
    assert _handles(node) == []


def test_tensors_are_found_in_what_a_module_returns(monkeypatch):
    nest = {"a": 1, "b": (2, [3])}
    assert list(torch_internals.leaves_of(nest)) == [1, 2, 3]
    monkeypatch.setattr(torch_internals, "_tree", None)
    assert list(torch_internals.leaves_of(nest)) == [1, 2, 3]


def test_sparse_tensors_have_no_storage():
    sparse = torch.eye(3).to_sparse()
    assert torch_internals.has_storage(torch.eye(3))
    assert not torch_internals.has_storage(sparse)
    assert not torch_internals._has_storage(sparse)
    assert torch_internals._has_storage(torch.eye(3))
