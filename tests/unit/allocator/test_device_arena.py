"""A device's own arena against the double of the driver: opened at its first use, published, planes in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from daf.allocator import Arena
from daf.allocator.stats import reader
from tests.unit.allocator.cuda_double import CudaDouble

MIB = 1 << 20
SIDE, OTHER = 1, 2
OpenOwn = Callable[[int, int], Any]


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> CudaDouble:
    return CudaDouble(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def own_arena(double: CudaDouble) -> Iterator[OpenOwn]:
    """Has device 0 open an arena by itself, of this budget and page size; returns it."""
    double.reset()

    def open_own(budget_bytes: int, page_bytes: int) -> Any:
        double.lib.daf_cuda_set_own(budget_bytes, page_bytes)
        double.free(double.malloc(MIB, SIDE))
        return double.lib.daf_cuda_arena(0)

    yield open_own
    double.lib.daf_cuda_set_own(0, 0)
    double.lib.daf_cuda_detach(0)
    assert double.violations() == 0
    assert double.mapped_bytes() == 0


def spoken_for(double: CudaDouble, raw: Any) -> Arena:
    """The arena in Python's words. The library's two copies have one layout, so either may work on it."""
    return Arena.of(int(double.ffi.cast("uintptr_t", raw)), name="run", device="cuda:0")


def test_a_device_opens_its_arena_with_the_sessions_budget_and_pages_at_its_first_use(
    double: CudaDouble, own_arena: OpenOwn
) -> None:
    assert double.lib.daf_cuda_arena(0) == double.ffi.NULL
    with spoken_for(double, own_arena(24 * MIB, 8192)) as arena:
        assert arena.stats()["budget_bytes"] == 24 * MIB
        assert arena.page_bytes == 8192


def test_pages_too_small_for_a_devices_units_give_way_to_the_default(double: CudaDouble, own_arena: OpenOwn) -> None:
    with spoken_for(double, own_arena(24 * MIB, 512)) as arena:
        assert arena.page_bytes == 4096


def test_the_home_stream_is_the_first_that_asked(double: CudaDouble, own_arena: OpenOwn) -> None:
    stream = double.ffi.new("daf_cuda_stream_t *")
    assert not double.lib.daf_cuda_home(0, stream)
    own_arena(0, 0)
    double.malloc(MIB, OTHER)
    assert double.lib.daf_cuda_home(0, stream)
    assert stream[0] == double.stream(SIDE)


def test_a_device_arena_is_published_with_its_device_and_serves_on_when_its_page_ends(
    double: CudaDouble, own_arena: OpenOwn
) -> None:
    raw = own_arena(24 * MIB, 4096)
    with spoken_for(double, raw) as arena:
        page = reader.StatsPage(arena.page_path)
        assert (page.identity.device, page.identity.name, page.state()) == ("cuda:0", "run", "live")
    assert page.state() == "finished"
    assert double.malloc(MIB, SIDE)


def test_planes_on_a_device_are_reserved_evicted_and_released(double: CudaDouble, own_arena: OpenOwn) -> None:
    with spoken_for(double, own_arena(24 * MIB, 4096)) as arena:
        spec = arena.stash_spec([MIB] * 4, [1.0, 0.5, 0.25, 0.1])
        stashes = [arena.reserve(spec) for _ in range(5)]
        for stash in stashes:
            double.submit(SIDE, first_page(double, stash), 4096)
            stash.unpin()
        assert double.malloc(8 * MIB, SIDE)  # planes go for it: 20 + 8 MiB are more than 24
        assert arena.stats()["evicted_bytes_total"] >= 4 * MIB
        assert min(stash.pin() for stash in stashes) < 4
        for stash in stashes:
            stash.release()
        assert arena.stats()["plane_bytes"] == 0
        assert arena.is_valid()


def first_page(double: CudaDouble, stash: Any) -> int:
    return int(double.ffi.cast("uintptr_t", double.ffi.cast("daf_stash_view_t *", stash.planes).pages[0]))
