from __future__ import annotations

from pathlib import Path

import pytest

from daf.session import _group_files


@pytest.mark.parametrize(
    ("line", "folders", "name"),
    [
        ("0::/slice/run", ["slice/run", "slice", "."], "memory.max"),
        ("4:cpu,memory:/run", ["memory/run", "memory"], "memory.limit_in_bytes"),
        ("3:cpu:/run", [], ""),
    ],
)
def test_limits_are_those_of_the_own_control_group_and_the_ones_around_it(
    tmp_path: Path, line: str, folders: list[str], name: str
) -> None:
    membership = tmp_path / "membership"
    membership.write_text(line + "\n")
    assert [limit for limit, _ in _group_files(membership, tmp_path)] == [
        tmp_path / folder / name for folder in folders
    ]


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert list(_group_files(tmp_path / "none", tmp_path)) == []
