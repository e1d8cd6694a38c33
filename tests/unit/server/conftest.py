"""A sidecar over pages that tests write themselves."""

from __future__ import annotations

import pathlib

import pytest

from daf.server.settings import Limits, Settings
from tests.unit.server.fakes import FakePages, Running


@pytest.fixture
def pages() -> FakePages:
    return FakePages()


@pytest.fixture
def settings(tmp_path: pathlib.Path) -> Settings:
    folder = tmp_path / "daf-runtime"
    folder.mkdir(mode=0o700)
    return Settings(folder, limits=Limits(stream_stall_seconds=1.0))


@pytest.fixture
def running(settings: Settings, pages: FakePages) -> Running:
    return Running(settings, pages)
