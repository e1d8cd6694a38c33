"""Which strategy a reduction takes: learned from the calls this process has made, or fixed by a stored profile.

The best strategy depends on the size, on the number of channels that can collide and on the number of threads (or SMs),
and differs from machine to machine. Offline profiling answers for the machine it ran on; here the real calls are the
measurement: each strategy is tried a few times per class of sizes, the fastest stays, and now and then another gets a
turn so that the choice follows the machine's load.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import threading
from collections import deque

from daf.errors import DafError

STRATEGIES = ("parallel", "atomic", "hybrid")
TRIALS = 4  # of each strategy before one is preferred
MEMORY = 9  # calls remembered per strategy: the shortest of these counts, which other processes disturb least
MARGIN = 0.05  # another strategy must beat parallel by this much: noise must not choose it
RETRY_EVERY = 128  # calls after which the least recently tried strategy gets one turn
PROFILE_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """What the choice depends on. Sizes count in powers of two: within one, the ranking hardly changes."""

    size_class: int
    channel_class: int
    num_threads: int

    @classmethod
    def of(cls, *, numel: int, channels: int, num_threads: int) -> Case:
        return cls(numel.bit_length(), channels.bit_length(), num_threads)

    def distance(self, other: Case) -> float:
        """How unlike two cases are; infinite between numbers of threads, which rank strategies anew."""
        if self.num_threads != other.num_threads:
            return float("inf")
        return abs(self.size_class - other.size_class) + abs(self.channel_class - other.channel_class)


class _Record:
    """What was measured for one case."""

    __slots__ = ("calls", "last_call", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = {strategy: deque[float](maxlen=MEMORY) for strategy in STRATEGIES}
        self.last_call = dict.fromkeys(STRATEGIES, 0)

    def next(self) -> str:
        fewest = min(STRATEGIES, key=lambda strategy: len(self.seconds[strategy]))
        if len(self.seconds[fewest]) < TRIALS:
            return fewest
        if self.calls % RETRY_EVERY == 0:
            return min(STRATEGIES, key=self.last_call.__getitem__)
        shortest = self.shortest()
        best = min(STRATEGIES, key=shortest.__getitem__)
        return best if shortest[best] < (1 - MARGIN) * shortest["parallel"] else "parallel"

    def shortest(self) -> dict[str, float]:
        return {strategy: min(times) for strategy, times in self.seconds.items() if times}

    def learn(self, strategy: str, seconds: float) -> None:
        self.calls += 1
        self.last_call[strategy] = self.calls
        self.seconds[strategy].append(seconds)


class Chooser:
    """Names a strategy for each call and hears how long it took. Any thread."""

    def __init__(self, profile: Profile | None = None) -> None:
        self._profile = profile
        self._records: dict[Case, _Record] = {}
        self._lock = threading.Lock()

    def choose(self, case: Case) -> str:
        fixed = self._profile.strategy(case) if self._profile else None
        if fixed is not None:
            return fixed
        with self._lock:
            return self._records.setdefault(case, _Record()).next()

    def learn(self, case: Case, strategy: str, seconds: float) -> None:
        with self._lock:
            self._records.setdefault(case, _Record()).learn(strategy, seconds)

    def measured(self) -> dict[Case, dict[str, float]]:
        """Return the seconds of every strategy in every case met so far: the shortest of the last calls."""
        with self._lock:
            return {case: record.shortest() for case, record in self._records.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """Strategies measured once and then kept: the answer of the nearest case with the same number of threads."""

    machine: str
    seconds: dict[Case, dict[str, float]]

    def strategy(self, case: Case) -> str | None:
        nearest = min(self.seconds, key=case.distance, default=None)
        if nearest is None or case.distance(nearest) == float("inf"):
            return None
        return min(self.seconds[nearest], key=self.seconds[nearest].__getitem__)

    def save(self, path: pathlib.Path) -> None:
        rows = [{**dataclasses.asdict(case), "seconds": seconds} for case, seconds in self.seconds.items()]
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps({"version": PROFILE_VERSION, "machine": self.machine, "reduce": rows}, indent=1))
        scratch.replace(path)  # a reader sees the old profile or the new one, never half

    @classmethod
    def load(cls, path: pathlib.Path) -> Profile:
        try:
            content = json.loads(path.read_text())
            if content["version"] != PROFILE_VERSION:
                raise ValueError(f"version {content['version']}")
            rows = {
                Case(row["size_class"], row["channel_class"], row["num_threads"]): {
                    name: float(row["seconds"][name]) for name in STRATEGIES
                }
                for row in content["reduce"]
            }
            return cls(str(content["machine"]), rows)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DafError(f"{path} is not a profile that `daf tune` wrote ({error!r}); run it again") from error


def machine_name() -> str:
    """Return what a profile is good for: the processor's name and the number of CPUs."""
    name = platform.processor() or platform.machine()
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {os.cpu_count()} CPUs"


def profile_path() -> pathlib.Path:
    """Return where `daf tune` stores its profile: DAF_PROFILE, or the user's cache folder."""
    if os.environ.get("DAF_PROFILE"):
        return pathlib.Path(os.environ["DAF_PROFILE"])
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "daf" / "profile.json"


def stored_profile() -> Profile | None:
    """Return this machine's profile, if there is one; `DAF_PROFILE=off` passes it over."""
    if os.environ.get("DAF_PROFILE") == "off" or not profile_path().exists():
        return None
    profile = Profile.load(profile_path())
    return profile if profile.machine == machine_name() else None
