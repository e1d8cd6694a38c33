"""Stats pages that lie: whatever is in a file, the sidecar reads on, soon, and serves the others."""

from __future__ import annotations

import os
import pathlib
import random
import struct
import subprocess
import sys

import pytest

from daf.allocator import Arena
from daf.server.fleet import Fleet, Selection
from daf.server.runtime import Pages


@pytest.fixture
def page_bytes() -> bytes:
    """The bytes of a real page."""
    with Arena(1 << 20) as arena:
        arena.slot(0, name="layer", op="linear", codec="raw", bits=4)
        for _ in range(20):
            arena.event("note", text="hello")
        return pathlib.Path(arena.page_path).read_bytes()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "pages"
    made.mkdir()
    return made


def read_everything(folder: pathlib.Path) -> int:
    """Do with the folder's pages all that the sidecar does with them; return how many could be opened."""
    fleet = Fleet(Pages(folder))
    fleet.refresh()
    for member, _reading in fleet.read(fleet.select(Selection())):
        for look in (
            lambda m=member: m.page.events(0),
            lambda m=member: m.page.map(),
            lambda m=member: m.page.outcome(1),
        ):
            try:
                look()
            except (ValueError, OSError, LookupError, ArithmeticError, struct.error):
                continue
    return len(fleet.members)


def test_an_untouched_copy_is_read(folder: pathlib.Path, page_bytes: bytes) -> None:
    (folder / "1-1.stats").write_bytes(page_bytes)
    assert read_everything(folder) == 1


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_is_survived(folder: pathlib.Path, page_bytes: bytes, seed: int) -> None:
    rng = random.Random(seed)
    for round_number in range(40):
        damaged = bytearray(page_bytes)
        for _ in range(rng.randrange(1, 30)):
            at = rng.randrange(rng.choice([256, 1024, 20000, len(damaged) - 8]))
            value = rng.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, rng.getrandbits(64)])
            damaged[at : at + 8] = value.to_bytes(8, "little")
        (folder / f"{round_number + 2}-1.stats").write_bytes(
            damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])]
        )
    read_everything(folder)


def test_odd_files_are_left_alone(folder: pathlib.Path, page_bytes: bytes) -> None:
    (folder / "1-1.stats").write_bytes(b"")
    (folder / "2-1.stats").write_bytes(b"DAFSTATS" + b"\xff" * 5000)
    (folder / "3-1.stats").mkdir()
    (folder / "4-1.stats").symlink_to("/dev/zero")
    os.mkfifo(folder / "5-1.stats")
    (folder / "6-1.stats").write_bytes(page_bytes)
    with (folder / "7-1.stats").open("wb") as huge:
        huge.truncate(1 << 40)
    assert read_everything(folder) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_page_of_another_user_is_not_read(folder: pathlib.Path, page_bytes: bytes) -> None:
    path = folder / "1-1.stats"
    path.write_bytes(page_bytes)
    os.chown(path, 12345, 12345)
    assert read_everything(folder) == 0


def test_a_page_that_is_cut_off_while_it_is_read_does_not_kill_the_reader(
    folder: pathlib.Path, page_bytes: bytes
) -> None:
    path = folder / "1-1.stats"
    path.write_bytes(page_bytes)
    script = f"""
import os, pathlib
from daf.server.fleet import Fleet, Selection
from daf.server.runtime import Pages
fleet = Fleet(Pages(pathlib.Path({str(folder)!r})))
fleet.refresh()
(member,) = fleet.select(Selection())
assert member.read(0.0, 100) is not None
os.truncate({str(path)!r}, 300)
assert member.read(0.0, 100) is None
print(member.error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "cut off" in done.stdout
