"""An observer that the run does not know of."""

from __future__ import annotations

import threading
from typing import Any

SAMPLE_SECONDS = 0.001


class Sampler:
    """Looks every millisecond, from a thread of its own, at the resident bytes of whatever has `stats()`."""

    def __init__(self, source: Any) -> None:
        self.peak_bytes = self.num_samples = 0
        self._source = source
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            self.peak_bytes = max(self.peak_bytes, int(self._source.stats()["resident_bytes"]))
            self.num_samples += 1

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
