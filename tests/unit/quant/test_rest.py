"""Steps without hooks where all fits with room to spare: when they begin, what is shown, what brings the hooks back."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import daf
from daf.quant.rest import LOOK_EVERY
from daf.quant.torch_internals import top_hooks

ROOMY = "512MiB"


@pytest.fixture(autouse=True)
def no_graph_was_compiled():
    """By a test before, in this process: then nothing rests."""
    torch._dynamo.utils.counters.clear()


@pytest.fixture(name="model")
def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))


def train(model: nn.Module, steps: int, *, rows: int = 64) -> list[Tensor]:
    losses = []
    for step in range(steps):
        x = torch.sin(torch.arange(rows * 32.0).reshape(rows, 32) + step)
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return losses


def test_a_run_with_room_to_spare_has_no_hooks_between_looks(model):
    with daf.Session(budget=ROOMY) as session:
        train(model, 4)
        assert top_hooks() is None
        assert not nn.modules.module._global_forward_hooks
        seen = session.stats()["packs_total"]
        train(model, LOOK_EVERY - 1)
        assert session.stats()["packs_total"] == seen
        train(model, 1)
        assert seen < session.stats()["packs_total"] <= seen + seen // 4


def test_steps_are_counted_and_their_activations_shown_without_hooks(model):
    shown = []
    model[0].weight.register_hook(lambda _grad: shown.append(session.stats()["saved_kept_bytes"]))
    with daf.Session(budget=ROOMY) as session:
        train(model, 20)
        stats = session.stats()
        assert stats["steps_total"] == 19
        assert stats["kept_bytes"] == stats["last_step_saved_raw_bytes"] == shown[-1] > 64 * 256 * 4
        assert stats["saved_kept_bytes"] == 0


def test_two_backward_passes_over_one_forward_are_one_step(model):
    with daf.Session(budget=ROOMY) as session:
        train(model, 5)
        before = session.stats()["steps_total"]
        for _ in range(3):
            out = model(torch.ones(4, 32))
            first, second = out.sum(), out.square().sum()
            first.backward(retain_graph=True)
            second.backward()
        assert session.stats()["steps_total"] == before + 3


def test_hooks_are_back_in_the_step_that_fills_half_of_the_budget(model):
    with daf.Session(budget="64MiB") as session:
        train(model, 5)
        assert top_hooks() is None
        seen = session.stats()["packs_total"]
        ballast = torch.empty(40 << 20, dtype=torch.uint8)
        assert top_hooks() is not None
        train(model, 3)
        assert session.stats()["packs_total"] > seen
        assert top_hooks() is not None
        del ballast
        train(model, 2)
        assert top_hooks() is not None, "a run that grew once is watched for a while"


def test_a_step_that_grows_past_the_budget_is_compressed_late():
    """The hooks come back at half of the budget; what is saved from then on makes room."""
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(24)))
    with daf.Session(budget="48MiB") as session:
        for _ in range(6):
            deep(torch.randn(32, 256)).sum().backward()
        assert top_hooks() is None
        for _ in range(2):
            deep(torch.randn(1100, 256)).sum().backward()
        assert session.stats()["late_total"] > 0


def test_a_budget_that_falls_below_twice_the_need_brings_them_back(model):
    with daf.Session(budget=ROOMY) as session:
        ballast = torch.empty(30 << 20, dtype=torch.uint8)
        train(model, 5)
        assert top_hooks() is None
        session.arena.set_budget(40 << 20, force=True)
        train(model, 2)
        assert top_hooks() is not None
    del ballast


def test_a_ratio_rests_only_where_the_least_that_it_leaves_is_enough(model):
    with daf.Session(budget=ROOMY, ratio=16):
        train(model, 8)
        assert top_hooks() is None
    with daf.Session(budget=ROOMY, ratio=16):
        train(model, 8, rows=512)
        assert top_hooks() is not None


@pytest.mark.parametrize("settings", [{"bits": 2}, {"bits": "lossless"}, {"max_error": "10%"}], ids=str)
def test_what_asks_for_compression_is_hooked_in_every_step(model, settings):
    with daf.Session(budget=ROOMY, **settings):
        train(model, 6)
        assert top_hooks() is not None


def test_losses_are_those_of_plain_training(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    plain = train(model, 2 * LOOK_EVERY)
    model.load_state_dict(state)
    with daf.Session(budget=ROOMY):
        ours = train(model, 2 * LOOK_EVERY)
    assert all(map(torch.equal, plain, ours))


def test_somebody_elses_hooks_are_left_alone(model):
    packed = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with daf.Session(budget=ROOMY) as session:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            train(model, 2 * LOOK_EVERY)
            assert top_hooks()[0] is pack
        num_packed = len(packed)
        train(model, LOOK_EVERY)
        assert session.stats()["failures_total"] == 0
    assert len(packed) == num_packed
    assert top_hooks() is None


def test_other_threads_rest_and_wake_too(model):
    results: list[object] = []

    def work() -> None:
        torch.manual_seed(1)
        own = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        try:
            train(own, 2 * LOOK_EVERY)
        except Exception as error:
            results.append(error)
        results.append(top_hooks())

    with daf.Session(budget=ROOMY) as session:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        train(model, 2 * LOOK_EVERY)
        for thread in threads:
            thread.join()
        assert session.stats()["failures_total"] == 0
    assert not [result for result in results if isinstance(result, Exception)]


def test_an_exception_in_a_step_without_hooks_changes_nothing(model):
    with daf.Session(budget=ROOMY) as session:
        train(model, 6)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(torch.ones(4, 31))
        loss = model(torch.ones(4, 32)).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        train(model, 2 * LOOK_EVERY)
        stats = session.stats()
        assert stats["failures_total"] == 0
        assert stats["saved_kept_bytes"] == 0


def test_a_compiled_graph_ends_the_rest_for_good(model):
    with daf.Session(budget=ROOMY):
        train(model, 6)
        compiled = torch.compile(nn.Linear(32, 32), backend="aot_eager")
        for _ in range(2 * LOOK_EVERY):
            compiled(torch.ones(4, 32)).sum().backward()
            hooks = top_hooks()
        assert hooks is not None
        torch._dynamo.reset()


def test_nothing_is_left_after_a_session_that_ends_at_rest(model):
    with daf.Session(budget=ROOMY):
        train(model, 6)
    assert top_hooks() is None
    assert not nn.modules.module._global_forward_hooks
    train(model, 1)
