from __future__ import annotations

import pathlib
import platform
import stat

import pytest

from daf.allocator.place import Place, find_place, is_launcher
from daf.allocator.stats.runtime_dir import make_runtime_dir

HERE = platform.node()
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "node-7", "POD_NAME": "train-0", "POD_NAMESPACE": "ml"}
TASK = {
    "SLURM_JOB_ID": "77", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURMD_NODENAME": "n2",
}  # fmt: skip
RANKED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, Place("", HERE)),
        ({"TORCHELASTIC_RUN_ID": "night", **RANKED}, Place("night", HERE, 3, 1, 4, 2, "torchrun")),
        (
            {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "1", **RANKED},
            Place("a:1", HERE, 3, 1, 4, 2, "torchrun"),
        ),
        (TASK, Place("77", "n2", 5, 1, 7, 2, "slurm")),
        ({**TASK, "SLURM_STEP_ID": "3"}, Place("77.3", "n2", 5, 1, 7, 2, "slurm")),
        ({**TASK, "TORCHELASTIC_RUN_ID": "none", **RANKED}, Place("77", "n2", 3, 1, 4, 2, "torchrun")),
        ({"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Place("77", HERE)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-9@1"},
            Place("prterun-9@1", HERE, 1, 0, 2, 1, "mpi"),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, Place("", HERE, 1, 0, 2, 2, "mpi")),
        (
            {**POD, "JOB_NAME": "train", "JOB_COMPLETION_INDEX": "2"},
            Place("train", "node-7", 2, 0, 3, 1, "kubernetes", "train-0", "ml"),
        ),
        ({"JOB_NAME": "a build", "POD_NAME": "p", "NODE_NAME": "n"}, Place("", HERE)),
        ({"RAY_JOB_ID": "02000000", **RANKED}, Place("02000000", HERE, 3, 1, 4, 2, "torchrun")),
        ({"DAF_JOB": "mine", "DAF_HOST": "h1", **TASK}, Place("mine", "h1", 5, 1, 7, 2, "slurm")),
    ],
)
def test_a_process_knows_its_place_from_its_launcher(environ: dict[str, str], place: Place) -> None:
    assert find_place(environ) == place


@pytest.mark.parametrize("digits", ["٣", "²", "-1", "1e3", "", "9" * 50])
def test_only_ascii_digits_are_numbers(digits: str) -> None:
    assert find_place({**RANKED, "RANK": digits}).rank == 0


def test_names_are_bounded_and_printable() -> None:
    place = find_place({"DAF_JOB": "j" * 5000, "DAF_HOST": "a\nb\x00c"})
    assert (len(place.job), place.host) == (80, "abc")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python /env/bin/torchrun --nproc-per-node 2 train.py", True),
        ("python -u -X dev -m torch.distributed.run train.py", True),
        ("python /env/bin/accelerate launch train.py", True),
        ("python /env/bin/accelerate estimate-memory bert", False),
        ("python /env/bin/deepspeed train.py", True),
        ("python train.py -m torch.distributed.run", False),
        ("python -c pass torchrun", False),
        ("python -m mypackage.train", False),
        ("python", False),
        ("", False),
    ],
)
def test_a_launcher_is_no_run(line: str, expected: bool) -> None:
    assert is_launcher(line.split()) is expected


def test_a_folder_that_others_may_enter_is_refused_and_left_as_it_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(shared))
    with pytest.raises(PermissionError, match="open to other users"):
        make_runtime_dir()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(shared / "daf"))
    assert stat.S_IMODE(make_runtime_dir().stat().st_mode) == 0o700
