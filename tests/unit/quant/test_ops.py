"""The table of ops, held against torch's own lists: its derivatives, and the ops that its tests go through."""

from __future__ import annotations

import importlib.util
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from daf.quant import ops
from daf.quant.ops import ALLOWED, OPS, Use

FOREACH = "Foreach"  # optimizers' ops, many made by torch's build and not in its list: exact without a row


@pytest.fixture(scope="module")
def saved_by_torch() -> dict[str, set[str]]:
    """Names of the tensors that each node of torch's derivatives saves."""
    load = pytest.importorskip("torchgen.packaged.autograd.load_derivatives")
    spec = importlib.util.find_spec("torchgen")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent / "packaged"
    native = root / "ATen" / "native"
    derivatives, _ = load.load_derivatives(
        str(root / "autograd" / "derivatives.yaml"), str(native / "native_functions.yaml"), str(native / "tags.yaml")
    )
    found: dict[str, set[str]] = {}
    for by_key in derivatives.values():
        for info in by_key.values():
            if info.derivatives:
                saved = (*info.all_saved_inputs, *info.all_saved_outputs)
                fields = {_name(field) for field in saved if _is_tensor(field)}
                if fields:
                    found.setdefault(info.op, set()).update(fields)
    return found


def _name(field: object) -> str:
    name = field.nctype.name  # type: ignore[attr-defined]
    return name if isinstance(name, str) else name.name


def _is_tensor(field: object) -> bool:
    kind = str(field.nctype.type)  # type: ignore[attr-defined]
    return "name='Tensor'" in kind or "TensorList" in kind or "ITensorListRef" in kind


def test_every_derivative_of_torch_that_saves_a_tensor_has_a_row(saved_by_torch):
    assert len(saved_by_torch) > 300
    assert sorted(saved_by_torch.keys() - OPS.keys()) == []


def test_every_tensor_that_a_derivative_saves_has_a_use(saved_by_torch):
    without = {
        f"{name}.{field}"
        for name, fields in saved_by_torch.items()
        for field in fields
        if name in OPS and OPS[name].use(field) is Use.UNKNOWN and "TestAutograd" not in name
    }
    assert sorted(without) == []


def test_every_tensor_that_a_row_names_is_one_that_torch_saves(saved_by_torch):
    unknown = {
        f"{op.name}.{field}"
        for op in OPS.values()
        if op.name in saved_by_torch
        for field in op.uses
        if field not in saved_by_torch[op.name]
    }
    assert sorted(unknown) == []


def test_every_row_is_of_an_op_that_torch_has(saved_by_torch):
    # LuUnpack saves only sizes.
    assert sorted(OPS.keys() - saved_by_torch.keys() - {"LuUnpackBackward0"}) == []


def _sampled_nodes() -> Iterator[tuple[str, str, bool]]:
    """Of one call of every op that torch's tests know: the op, and each node of its graph that saved a tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as methods

        for info in methods.op_db:
            try:
                # Past the tracker of samples, which reads the source of every frame: minutes in all.
                sample = next(iter(info.sample_inputs_func(info, "cpu", torch.float32, True)))
                outputs = torch.utils._pytree.tree_leaves(info(sample.input, *sample.args, **sample.kwargs))
            except Exception:
                continue  # not for the CPU, or not for float32
            for name, saves in _graph(outputs):
                yield info.name, name, saves


def _graph(outputs: list[object]) -> Iterator[tuple[str, bool]]:
    nodes = [leaf.grad_fn for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        is_python = isinstance(node, torch.autograd.function.BackwardCFunction)
        yield node.name(), not is_python and any(field.startswith("_raw_saved_") for field in dir(node))
        nodes.extend(before for before, _ in node.next_functions if before is not None)


def test_every_node_that_torchs_own_tests_of_ops_make_has_a_row_if_it_saves_a_tensor():
    pytest.importorskip("torch.testing._internal.common_methods_invocations")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the samples are a few numbers each
    try:
        nodes = list(_sampled_nodes())
    finally:
        torch.set_num_threads(num_threads)
    assert len(nodes) > 500
    missing = {(op, name) for op, name, saves in nodes if saves and name not in OPS and not name.startswith(FOREACH)}
    assert sorted(missing) == []


def test_every_row_says_why():
    assert all(len(op.reason) >= 10 for op in OPS.values())


@pytest.mark.parametrize(
    "node",
    [
        "LogBackward0",
        "SqrtBackward0",
        "RsqrtBackward0",
        "DivBackward0",
        "PowBackward0",
        "MseLossBackward0",
        "Atan2Backward0",
    ],
)
def test_what_is_divided_by_or_taken_a_root_power_or_logarithm_of_is_never_allowed(node):
    assert OPS[node].use("self") not in ALLOWED
    assert OPS[node].use("result") not in ALLOWED


def test_indices_masks_and_statistics_are_never_allowed():
    assert ALLOWED.isdisjoint({Use.INDEX, Use.MASK, Use.STATISTIC, Use.FRAGILE, Use.WORKSPACE, Use.UNKNOWN})


def test_a_node_that_the_table_does_not_know_has_no_row_and_no_rule():
    assert ops.op_of("MyFunctionBackward") is None
    assert ops.rule_of("MyFunctionBackward") == ""
    assert ops.flow_of("MyFunctionBackward") == ops.DEFAULT_FLOW


def test_an_op_is_shown_by_the_name_that_people_know():
    assert ops.short("AddmmBackward0") == "Addmm"


def test_names_of_autograd_nodes_stand_in_the_table_alone():
    found = subprocess.run(
        ["grep", "-rlE", "--include=*.py", "[A-Za-z0-9]Backward[0-9]|AccumulateGrad", "quant", "daf"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == ["quant/ops.py"]
