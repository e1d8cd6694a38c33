"""Which shim is used: the ready-made one that works, else one compiled here, else none; each said once."""

from __future__ import annotations

import pathlib
import shutil
import warnings

import pytest

from daf.allocator.torch import shim


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A cache folder of its own, that has the compiled shim already: the tests are not about the compiler."""
    built = shim.build()
    monkeypatch.setenv("DAF_CACHE_DIR", str(tmp_path / "cache"))
    shim.cache_dir().mkdir()
    shutil.copy(built, shim.shim_path())
    return tmp_path


def ready_made(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    path = shim.ready_made_path(folder)
    monkeypatch.setattr(shim, "ready_made_path", lambda: path)
    return path


def test_a_ready_made_shim_that_works_is_used_and_tried_once(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ready_made(cache, monkeypatch)
    shutil.copy(shim.shim_path(), path)
    assert shim.find() == path
    monkeypatch.setattr(shim.subprocess, "run", pytest.fail)
    assert shim.find() == path


def test_a_ready_made_shim_that_does_not_work_is_said_once_and_one_is_compiled(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready_made(cache, monkeypatch).write_bytes(b"no library")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert shim.find() == shim.shim_path()
    assert [str(warning.category.__name__) for warning in seen] == ["ShimWarning"]
    assert "does not work here" in str(seen[0].message)


def test_without_a_ready_made_shim_one_is_compiled_in_silence(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready_made(cache, monkeypatch)
    assert shim.find() == shim.shim_path()


def test_without_shim_and_compiler_the_error_names_the_package(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready_made(cache, monkeypatch)
    shim.shim_path().unlink()
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(shim.ShimError, match="apt install g"):
        shim.find()
