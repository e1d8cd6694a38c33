"""Stats pages that lie: whatever is in a file, the sidecar reads on, soon, and serves the others."""

from __future__ import annotations

import math
import os
import pathlib
import random
import struct
import subprocess
import sys

import pytest
from fastapi.testclient import TestClient

from daf.allocator import Arena
from daf.allocator.stats.reader import _FIELD as FIELD
from daf.allocator.stats.reader import _HEADER as HEADER
from daf.allocator.stats.reader import _SECTION as SECTION
from daf.allocator.stats.reader import _SECTIONS
from daf.allocator.stats.runtime_dir import process_start_time
from daf.server.app import create_app
from daf.server.fleet.pages import Pages
from daf.server.fleet.state import Sidecar
from daf.server.settings import Limits, Settings

PATHS = (
    "/v1/processes", "/v1/stats", "/v1/fields", "/v1/history", "/v1/slots", "/v1/widths", "/v1/map", "/v1/budget",
    "/v1/snapshot", "/v1/trace", "/v1/report", "/v1/events", "/metrics",
)  # fmt: skip


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
    settings = Settings(folder, limits=Limits.without_rates())
    sidecar = Sidecar.build(settings, "t" * 43, Pages(folder))
    client = TestClient(create_app(sidecar), base_url="http://127.0.0.1", raise_server_exceptions=False)
    sidecar.sampler.tick()
    for process in (None, *sidecar.fleet.members):
        query = {"process": process} if process else {}
        for path in PATHS:
            answer = client.get(path, params=query)
            assert answer.status_code < 500, (path, process, answer.text)
        right = {"Authorization": "Bearer " + "t" * 43}
        wish = {"dry_run": "true", **query}
        answer = client.put("/v1/budget", json={"budget": 1}, params=wish, headers=right)
        assert answer.status_code < 500, (process, answer.text)
    sidecar.sampler.tick()
    return len(sidecar.fleet.members)


def alive(page: bytes) -> bytearray:
    """Return the page as one of a process that lives: this one."""
    header = list(HEADER.unpack_from(page))
    header[4:7] = 1, os.getpid(), process_start_time(os.getpid())
    return bytearray(HEADER.pack(*header) + page[HEADER.size :])


def section(page: bytes | bytearray, name: str) -> tuple[int, int, int]:
    """Return offset, stride and count."""
    return SECTION.unpack_from(page, HEADER.size + SECTION.size * _SECTIONS.index(name))[:3]


def column(page: bytes | bytearray, table: str, name: str) -> int:
    """Return where the named cell stands in a record."""
    offset, stride, count = section(page, table)
    found = (FIELD.unpack_from(page, offset + i * stride) for i in range(count))
    return next(int(it[5]) for it in found if it[0].rstrip(b"\0") == name.encode())


def test_an_untouched_copy_is_read(folder: pathlib.Path, page_bytes: bytes) -> None:
    (folder / "1-1.stats").write_bytes(page_bytes)
    assert read_everything(folder) == 1


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_is_survived(folder: pathlib.Path, page_bytes: bytes, seed: int) -> None:
    rng = random.Random(seed)
    for round_number in range(40):
        damaged = alive(page_bytes) if round_number % 2 else bytearray(page_bytes)
        for _ in range(rng.randrange(1, 30)):
            at = rng.randrange(rng.choice([256, 1024, 20000, len(damaged) - 8]))
            value = rng.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 0x7FF8 << 48, rng.getrandbits(64)])
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


@pytest.mark.parametrize(
    ("said", "is_read"),
    [
        ('{"rank": Infinity}', False),
        ('{"started_at": 1' + "0" * 400 + "}", False),
        ("[1]", False),
        ("[" * 7000, False),
        (r'{"name": "\ud800", "job_id": "\udfff", "argv": ["\ud800"], "versions": {"\ud800": "\ud800"}}', True),
    ],
)
def test_an_identity_that_makes_no_sense_hides_nobody(
    folder: pathlib.Path, page_bytes: bytes, said: str, is_read: bool
) -> None:
    page = alive(page_bytes)
    offset, stride, _count = section(page, "identity")
    page[offset : offset + stride] = said.encode().ljust(stride, b"\0")
    (folder / "1-1.stats").write_bytes(page)
    (folder / "2-1.stats").write_bytes(page_bytes)
    assert read_everything(folder) == 1 + is_read


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, 1e9, -5.0])
def test_numbers_that_make_no_sense_neither_break_nor_hang_anything(
    folder: pathlib.Path, page_bytes: bytes, value: float
) -> None:
    page = alive(page_bytes)
    row = section(page, "slots")[0]
    for name in ("bits", "importance", "fidelity"):
        struct.pack_into("=d", page, row + column(page, "columns", name), value)
    for name in ("live_bytes", "stored_bytes"):
        struct.pack_into("=Q", page, row + column(page, "columns", name), 1 << 42)
    resident = section(page, "values")[0] + column(page, "fields", "resident_bytes")
    struct.pack_into("=Q", page, resident, 1 << 45)
    (folder / "1-1.stats").write_bytes(page)
    (folder / "2-1.stats").write_bytes(page_bytes)
    assert read_everything(folder) == 2


@pytest.mark.parametrize(("name", "stride", "count"), [("map", 60 << 20, 1), ("events", 128, 450_000)])
def test_a_page_that_claims_to_be_vast_is_not_opened(
    folder: pathlib.Path, page_bytes: bytes, name: str, stride: int, count: int
) -> None:
    page = alive(page_bytes)
    SECTION.pack_into(page, HEADER.size + SECTION.size * _SECTIONS.index(name), len(page), stride, count, 0)
    path = folder / "1-1.stats"
    path.write_bytes(page)
    os.truncate(path, 63 << 20)
    assert read_everything(folder) == 0


def test_a_column_of_the_wrong_type_is_not_believed(folder: pathlib.Path, page_bytes: bytes) -> None:
    page = alive(page_bytes)
    offset, stride, count = section(page, "columns")
    for at in range(offset, offset + stride * count, stride):
        cells = list(FIELD.unpack_from(page, at))
        cells[4] = 2
        FIELD.pack_into(page, at, *cells)
    (folder / "1-1.stats").write_bytes(page)
    assert read_everything(folder) == 0


def test_a_file_whose_name_is_no_process_is_left_alone(folder: pathlib.Path, page_bytes: bytes) -> None:
    for name in (b"\xff-1.stats", b"a b.stats", b"1-1-1-1.stats", b".stats"):
        pathlib.Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(page_bytes)
    assert read_everything(folder) == 0


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
from daf.server.fleet.members import Fleet, Selection
from daf.server.fleet.pages import Pages
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
