"""The lines of `/metrics` for a thousand ranks: `prometheus_client` writes the heads, each line here is one join."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric

Encode = Callable[..., bytes]
END = b"# EOF\n"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Row:
    """The labels of one process, escaped once."""

    def __init__(self, names: Iterable[str], values: Iterable[str]) -> None:
        self._pairs = sorted(f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))
        self._plain = "{" + ",".join(self._pairs) + "} "

    def line(self, name: str, names: tuple[str, ...], labels: tuple[str, ...], value: float) -> str:
        if not names:
            return f"{name}{self._plain}{float(value)!r}\n"
        further = [f'{it}="{label.translate(_ESCAPES)}"' for it, label in zip(names, labels, strict=True)]
        return f"{name}{{{','.join(sorted(self._pairs + further))}}} {float(value)!r}\n"


class _Of:
    """What an encoder takes for a registry."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def encoded(encode: Encode, metrics: Iterable[Metric]) -> bytes:
    """Return the metrics in the encoder's format, without the mark of its end."""
    return encode(_Of(metrics)).removesuffix(END)


def end_of(encode: Encode) -> bytes:
    return END if encode(_Of([])).endswith(END) else b""
