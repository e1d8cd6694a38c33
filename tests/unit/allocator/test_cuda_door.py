"""The CUDA allocator against the double of the driver: streams, events, mapping, and a failure of every single call."""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from daf.allocator import FrontDoorWarning
from daf.allocator.torch import cuda_door
from tests.unit.allocator.cuda_double import CudaDouble

MIB = 1 << 20
HOME, SIDE, OTHER = 0, 1, 2
CUDA_HEADERS = ("/usr/local/cuda/include/cuda.h", "/usr/include/cuda.h")
TORCH_CALLS = ("daf_malloc", "daf_free", "daf_record_stream", "daf_init", "daf_reset", "daf_memory_fraction")


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> CudaDouble:
    return CudaDouble(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def arena(double: CudaDouble) -> Iterator[Any]:
    double.reset()
    arena = double.open(64 * MIB)
    yield arena
    double.fail(0, 0)
    double.capture(-1)
    assert double.is_valid(arena) == ""
    double.lib.daf_cuda_detach(0)
    double.lib.daf_arena_close(arena)
    assert double.violations() == 0
    assert double.mapped_bytes() == 0
    assert double.live_events() == 0
    assert double.live_handles() == 0
    assert double.context_depth() == 0


def test_the_library_loads_without_cuda_and_has_torchs_functions_with_c_linkage() -> None:
    library = ctypes.CDLL(cuda_door.library_path())
    for name in TORCH_CALLS:
        assert ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def test_without_cuda_the_reason_is_told(tmp_path: pathlib.Path) -> None:
    script = "from daf.allocator.torch.cuda_door import why_no_cuda; print(why_no_cuda())"
    env = {"LD_LIBRARY_PATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    if said.strip():
        assert "CUDA driver" in said or "cuInit" in said


def test_where_torch_has_no_cuda_installing_says_so_and_goes_on() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.warns(FrontDoorWarning, match="cannot take over torch's CUDA allocator"):
        assert not cuda_door.install_cuda()


@pytest.mark.usefixtures("arena")
def test_memory_of_the_home_stream_is_used_again_at_once(double: CudaDouble) -> None:
    first = double.malloc(4 * MIB)
    double.submit(HOME, first, 4 * MIB)
    double.free(first)
    assert double.malloc(4 * MIB) == first
    double.submit(HOME, first, 4 * MIB)
    assert double.counts().num_events == 0


@pytest.mark.usefixtures("arena")
def test_memory_of_a_side_stream_is_used_again_by_it_at_once_and_by_others_behind_its_event(double: CudaDouble) -> None:
    double.malloc(MIB)
    block = double.malloc(8 * MIB, SIDE)
    double.submit(SIDE, block, 8 * MIB)
    double.free(block, stream=SIDE)
    assert double.malloc(8 * MIB, HOME) != block
    assert double.malloc(8 * MIB, SIDE) == block
    double.submit(SIDE, block, 8 * MIB)
    double.free(block, stream=SIDE)
    double.complete(SIDE)
    assert double.malloc(8 * MIB, HOME) == block
    double.submit(HOME, block, 8 * MIB)


@pytest.mark.usefixtures("arena")
def test_a_side_stream_comes_behind_the_home_streams_use_of_the_same_memory(double: CudaDouble) -> None:
    block = double.malloc(8 * MIB)
    double.submit(HOME, block, 8 * MIB)
    double.free(block)
    assert double.malloc(8 * MIB, SIDE) == block
    double.submit(SIDE, block, 8 * MIB)
    assert double.counts().num_waits >= 1


@pytest.mark.usefixtures("arena")
def test_a_recorded_stream_delays_reuse_until_it_has_passed(double: CudaDouble) -> None:
    block = double.malloc(8 * MIB)
    double.submit(HOME, block, 8 * MIB)
    double.record_stream(block, OTHER)
    double.complete(HOME)
    double.submit(OTHER, block, 8 * MIB)
    double.free(block)
    assert double.malloc(8 * MIB) != block
    assert double.counts().pending_blocks == 1
    double.complete(OTHER)
    double.complete(HOME)
    assert double.malloc(8 * MIB) == block


@pytest.mark.usefixtures("arena")
def test_when_memory_is_short_the_host_waits_for_what_is_pending(double: CudaDouble) -> None:
    double.malloc(MIB)
    block = double.malloc(40 * MIB, SIDE)
    double.submit(SIDE, block, 40 * MIB)
    double.free(block, stream=SIDE)
    wanted = double.malloc(56 * MIB)
    assert wanted
    double.submit(HOME, wanted, 56 * MIB)
    assert double.counts().num_synchronizes >= 1
    assert double.meter().num_retries == 1


@pytest.mark.usefixtures("arena")
def test_nothing_is_unmapped_while_the_device_uses_it(double: CudaDouble) -> None:
    block = double.malloc(32 * MIB)
    double.submit(HOME, block, 32 * MIB)
    double.free(block)
    double.lib.daf_reset()  # gives memory back to the device: waits first
    assert double.mapped_bytes() == 0


def test_over_budget_the_report_is_raised_and_the_next_smaller_request_works(double: CudaDouble, arena: Any) -> None:
    said: list[str] = []
    keep = double.ffi.callback("daf_raise_fn", lambda report: said.append(double.ffi.string(report).decode()))
    double.lib.daf_cuda_set_raise(keep)
    assert double.malloc(65 * MIB) == 0
    double.lib.daf_cuda_set_raise(double.ffi.NULL)
    assert "65.0 MiB asked for" in said[0]
    assert "budget" in said[0]
    assert double.malloc(32 * MIB)
    assert double.meter().num_ooms == 1
    assert double.is_valid(arena) == ""


@pytest.mark.usefixtures("arena")
def test_a_device_that_is_full_before_the_budget_is_a_failure_too(double: CudaDouble) -> None:
    double.set_total(16 * MIB)
    assert double.malloc(32 * MIB) == 0
    assert double.malloc(8 * MIB)


@pytest.mark.usefixtures("arena")
def test_memory_of_a_recorded_graph_is_kept_for_it(double: CudaDouble) -> None:
    told: list[int] = []
    keep = double.ffi.callback("daf_notice_fn", told.append)
    double.lib.daf_cuda_set_notice(keep)
    double.malloc(MIB)
    double.capture(SIDE)
    block = double.malloc(8 * MIB, SIDE)
    double.free(block, stream=SIDE)
    assert double.malloc(8 * MIB, SIDE) == block
    double.free(block, stream=SIDE)
    double.capture(-1)
    assert double.malloc(8 * MIB, SIDE) != block
    assert double.malloc(8 * MIB, HOME) != block
    assert double.counts().captured_blocks == 1
    assert told == [0]
    double.lib.daf_cuda_set_notice(double.ffi.NULL)


@pytest.mark.usefixtures("arena")
def test_counts_are_kept_in_torchs_terms(double: CudaDouble) -> None:
    small, large = double.malloc(1000), double.malloc(3 * MIB + 5)
    meter = double.meter()
    assert meter.blocks[0].allocated - meter.blocks[0].freed == 1
    assert meter.requested_bytes[1].allocated == 3 * MIB + 5
    assert meter.bytes[1].allocated >= 3 * MIB + 5
    double.free(small)
    double.free(large)
    meter = double.meter()
    assert meter.bytes[1].allocated == meter.bytes[1].freed
    assert meter.peak_bytes >= 3 * MIB


@pytest.mark.usefixtures("arena")
def test_a_memory_fraction_is_a_budget(double: CudaDouble) -> None:
    double.lib.daf_memory_fraction(8 / 256, 0)
    assert double.malloc(9 * MIB) == 0
    assert double.malloc(6 * MIB)


def test_a_device_without_an_arena_gets_one_of_its_own(double: CudaDouble) -> None:
    double.reset()
    block = double.malloc(MIB, device=1)
    assert block
    double.free(block, device=1)
    double.lib.daf_cuda_detach(1)
    assert double.mapped_bytes() == 0
    assert double.malloc(MIB, device=7) == 0


def test_foreign_pointers_and_null_are_ignored(double: CudaDouble, arena: Any) -> None:
    double.free(0)
    double.free(0x1234)
    double.record_stream(0x1234, SIDE)
    assert double.is_valid(arena) == ""


def _life(double: CudaDouble) -> None:
    """A bit of everything; what gets no memory is left out, as a training script would after an exception."""
    blocks = {}
    for i, (num_bytes, stream) in enumerate(((4 * MIB, HOME), (9 * MIB, SIDE), (700, HOME), (20 * MIB, OTHER))):
        address = double.malloc(num_bytes, stream)
        if address:
            double.submit(stream, address, num_bytes)
            blocks[i] = (address, num_bytes, stream)
    for i, (address, num_bytes, stream) in blocks.items():
        if i % 2 == 0:
            double.record_stream(address, OTHER)
            double.complete(stream)
            double.submit(OTHER, address, num_bytes)
        double.free(address, num_bytes, stream)
    double.complete(SIDE)
    again = double.malloc(30 * MIB, HOME)
    if again:
        double.submit(HOME, again, 30 * MIB)
        double.free(again)
    double.lib.daf_reset()


@pytest.mark.parametrize("status", [999, 2])
def test_a_failure_of_any_driver_call_hurts_nothing_that_comes_later(double: CudaDouble, status: int) -> None:
    num_calls = 1
    n = 0
    while n < num_calls:
        n += 1
        double.reset()
        before = double.calls()
        double.fail(n, status)
        arena = double.open(64 * MIB)
        if arena is None:
            double.fail(0, 0)
            assert double.mapped_bytes() == 0
            num_calls = max(num_calls, n + 1)
            continue
        _life(double)
        num_calls = max(num_calls, double.calls() - before)
        double.fail(0, 0)
        _life(double)
        assert double.is_valid(arena) == "", n
        double.lib.daf_cuda_detach(0)
        double.lib.daf_arena_close(arena)
        assert double.violations() == 0, n
        assert double.mapped_bytes() == 0, n
        assert double.live_events() == 0, n
        assert double.live_handles() == 0, n
    assert num_calls > 100


def test_the_drivers_types_are_those_of_its_own_header(tmp_path: pathlib.Path) -> None:
    header = next(filter(pathlib.Path.exists, map(pathlib.Path, CUDA_HEADERS)), None)
    compiler = shutil.which("cc")
    if header is None or compiler is None:
        pytest.skip("needs cuda.h of the CUDA toolkit, and a C compiler")
    allocator = pathlib.Path(cuda_door.__file__).parents[1]
    source = tmp_path / "abi.c"
    source.write_text(
        """
        #include <cuda.h>
        #include "os/cuda_driver.h"
        #define SAME(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
        SAME(dafi_cu_prop_t, CUmemAllocationProp); SAME(dafi_cu_access_t, CUmemAccessDesc);
        SAME(dafi_cu_address_t, CUdeviceptr); SAME(unsigned long long, CUmemGenericAllocationHandle);
        SAME(dafi_cu_result_t, CUresult); SAME(dafi_cu_event_t, CUevent); SAME(daf_cuda_stream_t, CUstream);
        _Static_assert(offsetof(dafi_cu_prop_t, location) == offsetof(CUmemAllocationProp, location), "location");
        _Static_assert(offsetof(dafi_cu_prop_t, flags) == offsetof(CUmemAllocationProp, allocFlags), "flags");
        _Static_assert(DAFI_CU_PINNED == CU_MEM_ALLOCATION_TYPE_PINNED, "pinned");
        _Static_assert(DAFI_CU_DEVICE == CU_MEM_LOCATION_TYPE_DEVICE, "device");
        _Static_assert(DAFI_CU_READ_WRITE == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access");
        _Static_assert(DAFI_CU_NOT_READY == CUDA_ERROR_NOT_READY, "not ready");
        _Static_assert(DAFI_CU_OUT_OF_MEMORY == CUDA_ERROR_OUT_OF_MEMORY, "out of memory");
        _Static_assert(DAFI_CU_EVENT_NO_TIMING == CU_EVENT_DISABLE_TIMING, "event flags");
        _Static_assert(DAFI_CU_CAPTURE_RELAXED == CU_STREAM_CAPTURE_MODE_RELAXED, "capture mode");
        """
    )
    include = [f"-I{header.parent}", f"-I{allocator}"]
    subprocess.run([compiler, "-std=c11", *include, "-fsyntax-only", str(source)], check=True)


def test_a_session_says_nothing_where_there_is_no_cuda() -> None:
    if not cuda_door.why_no_cuda():
        pytest.skip("needs a machine without CUDA")
    assert cuda_door.maybe_install_cuda() is False


@pytest.fixture
def cuda_in_name_only(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(cuda_door, "why_no_cuda", lambda: "")
    monkeypatch.setattr(cuda_door, "_why_not_torch", lambda _torch: "")
    monkeypatch.setattr(cuda_door, "_kept", [])
    return monkeypatch


def test_a_session_after_the_first_cuda_call_warns_that_it_came_too_late(
    cuda_in_name_only: pytest.MonkeyPatch,
) -> None:
    cuda_in_name_only.setattr("torch.cuda.is_initialized", lambda: True)
    with pytest.warns(FrontDoorWarning, match="used CUDA already"):
        assert cuda_door.maybe_install_cuda(64 * MIB) is False


def test_a_session_installs_the_door_once(cuda_in_name_only: pytest.MonkeyPatch) -> None:
    installed: list[Any] = []

    def install() -> bool:
        installed.append(True)
        cuda_door._kept.append("the allocator")
        return True

    cuda_in_name_only.setattr(cuda_door, "install_cuda", install)
    assert cuda_door.maybe_install_cuda(64 * MIB)
    assert cuda_door.maybe_install_cuda(64 * MIB)
    assert installed == [True]
