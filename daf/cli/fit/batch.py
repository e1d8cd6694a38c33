"""The largest batch that fits a budget: the script's own option for the batch is set to one size after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

CLOSE = 0.05  # the search ends when so much of the batch is in doubt
MAX_GROWTH = 4.0  # from one size to the next, while all fit


def option_value(arguments: Sequence[str], option: str) -> int:
    """Return the number that `arguments` give for `option`, as `--batch-size 8` or `--batch-size=8`.

    >>> option_value(["train.py", "--batch-size", "8"], "--batch-size")
    8
    """
    for word, following in itertools.pairwise([*arguments, ""]):
        name, _, value = word.partition("=")
        text = value or following
        if name == option and text.isdecimal() and int(text) > 0:
            return int(text)
    raise ValueError(f"there is no {option} with a number among {' '.join(arguments)!r}; write it: {option} 8")


def with_value(arguments: Sequence[str], option: str, value: int) -> list[str]:
    """Return `arguments` with another number for `option`.

    >>> with_value(["train.py", "--batch-size=8"], "--batch-size", 16)
    ['train.py', '--batch-size=16']
    """
    found, is_next = [], False
    for word in arguments:
        if is_next:
            found.append(str(value))
        elif word.startswith(f"{option}="):
            found.append(f"{option}={value}")
        else:
            found.append(word)
        is_next = word == option and not is_next
    return found


def largest(first: int, guess: float, fits: Callable[[int], bool]) -> int:
    """Return the largest batch for which `fits`, within CLOSE; 0 where not even `first` does.

    guess   what the first trial expects to fit

    >>> largest(8, 30, lambda batch: batch <= 100)
    100
    """
    good, bad = 0, 0
    size = first
    while True:
        if fits(size):
            good = size
        else:
            bad = size
        if good == 0 and bad <= 1:
            return 0
        if bad and bad - good <= max(1, CLOSE * good):
            return good
        size = _next(good, bad, guess)


def _next(good: int, bad: int, guess: float) -> int:
    if bad:
        return max(1, (good + bad) // 2)
    return int(guess) if good < guess <= MAX_GROWTH * good else round(MAX_GROWTH * good / 2)
