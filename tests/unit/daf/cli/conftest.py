"""The commands are tested over the same pages as the sidecar."""

from tests.unit.server.conftest import pages, running, settings

__all__ = ["pages", "running", "settings"]
