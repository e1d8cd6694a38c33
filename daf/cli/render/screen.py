"""`daf top`: all runs on one screen, and keys that steer the chosen one.

`Top` holds what is shown and what is typed and knows no terminal; `run_top` reads keys and paints.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from daf.cli.render.tables import STATE_STYLES, event_line, figure_cells, make_table, state_words
from daf.server.client import Client, Events, SidecarError
from daf.sizes import format_bytes

KEYS = "↑↓ choose  b budget  p stop compressing  r resume  ? help  q quit"
HELP = """RESIDENT  bytes with physical memory behind them, of the BUDGET that is allowed
RATIO     how many times less saved activations take than plain training would hold
FRAG      share of free tensor memory outside its largest piece
EVICTED   bit planes dropped to make room; the least important go first
BITS      width in which a layer's activations are stored; HELD against PLAIN
FIDELITY  cosine of the gradients from stored and from exact contents; 1 is exact

b  type a new budget (2GiB, 512MB, 50%)      p  stop compressing: new activations are kept exact
r  compress again                            up, down, j, k  choose a run"""
# Heading, and the width of the terminal from which on the column is shown: what matters most is always there.
PROCESS_COLUMNS = (
    ("", 0), ("NAME", 0), (">PID", 0), (">RANK", 110), ("STATE", 0), (">BUDGET", 0), (">RESIDENT", 0), (">RATIO", 84),
    (">FRAG", 124), (">EVICTED", 116), (">STEP", 76),
)  # fmt: skip
SLOT_COLUMNS = (
    ("LAYER", 0), ("OP", 100), ("CODEC", 110), (">BITS", 0), ("", 84), (">HELD", 0), (">PLAIN", 0), (">RATIO", 0),
    (">FIDELITY", 100),
)  # fmt: skip
Columns = tuple[tuple[str, int], ...]
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_SAMPLES = 24
ESCAPES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}
LEVEL_STYLES = {"good": "green", "note": "cyan", "warning": "yellow", "trouble": "bold red"}
QUIT_KEYS = frozenset({"q", "\x03", "\x04"})


class Top:
    """What is on the screen."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.processes: list[dict[str, Any]] = []
        self.stats: dict[str, dict[str, Any]] = {}
        self.slots: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.verdicts: list[dict[str, Any]] = []
        self._following = Events(client)
        self.chosen = 0
        self.typed: str | None = None  # the budget being typed; None when none is
        self.message = ""
        self.done = False
        self.is_helping = False
        self.residents: dict[str, list[float]] = {}  # process id -> resident bytes at the last looks

    @property
    def process(self) -> dict[str, Any] | None:
        return self.processes[min(self.chosen, len(self.processes) - 1)] if self.processes else None

    def update(self) -> None:
        """Ask for everything anew; what cannot be had is said in the message line."""
        try:
            self.processes = self._client.processes()["processes"]
            self.stats = {one["process"]: one for one in self._client.get("/v1/stats")["processes"]}
            for name, one in self.stats.items():
                past = self.residents.get(name, [])
                self.residents[name] = [*past, float(one["values"].get("resident_bytes", 0))][-SPARK_SAMPLES:]
            self.slots = self._slots()
            self.verdicts = self._verdicts()
            self.events = [*self.events, *self._following.new()][-100:]
        except SidecarError as error:
            self.message = str(error)

    def _slots(self) -> list[dict[str, Any]]:
        if self.process is None:
            return []
        with contextlib.suppress(SidecarError):
            rows = self._client.get("/v1/slots", process=self.process["id"])["slots"]
            return sorted(rows, key=lambda row: -row["stored_bytes"])
        return []

    def _verdicts(self) -> list[dict[str, Any]]:
        if self.process is None:
            return []
        with contextlib.suppress(SidecarError):
            return list(self._client.get("/v1/verdict", process=self.process["id"])["verdicts"])
        return []

    def press(self, key: str) -> None:
        """React to one key."""
        if self.is_helping:
            self.is_helping = False
        elif self.typed is not None:
            self._type(key)
        elif key == "?":
            self.is_helping = True
        elif key in QUIT_KEYS:
            self.done = True
        elif key in ("up", "k", "down", "j"):
            step = -1 if key in ("up", "k") else 1
            self.chosen = max(0, min(len(self.processes) - 1, self.chosen + step))
        elif self.process is not None and key == "b":
            self.typed, self.message = "", ""
        elif self.process is not None and key in ("p", "r"):
            pid = self.process["pid"]
            self._say(lambda: f"{'pause' if key == 'p' else 'resume'}: {self._client.pause(key == 'p', pid=pid)}")

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key in ("\x1b", "\x03"):
            self.typed = None
        elif key in ("\r", "\n"):
            wish, self.typed = self.typed.strip(), None
            pid = self.process["pid"] if self.process else None
            if wish:
                self._say(lambda: f"budget {wish}: {self._client.put_budget(wish, pid=pid)}")
        elif key in ("\x7f", "\b"):
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable() and len(self.typed) < 40:
            self.typed += key

    def _say(self, act: Any) -> None:
        try:
            self.message = act()
        except SidecarError as error:
            self.message = str(error)

    def render(self, num_lines: int, width: int = 140) -> RenderableType:
        """Return the screen; the slots and events share what the processes leave of `num_lines`."""
        if self.is_helping:
            return Group(self._head(), Text(HELP), Text("any key goes back", "dim"))
        room = max(4, num_lines - len(self.processes) - 10)
        parts: list[RenderableType] = [self._head(), self._process_table(width), Text()]
        if self.process is not None:
            parts += [Text(found["text"], LEVEL_STYLES[found["level"]]) for found in self.verdicts[:2]]
            parts += [self._bar(width), self._kinds()]
            parts.append(
                Panel(self._slot_table(room * 2 // 3, width), title=f"saved by {self._label()}", title_align="left")
            )
        parts.append(Text("\n".join(event_line(event) for event in self.events[-max(1, room // 3) :]), no_wrap=True))
        parts.append(self._foot())
        return Group(*parts)

    def _kinds(self) -> Text:
        """Memory by kind in one line, the largest first."""
        assert self.process is not None
        found = self.stats.get(self.process["id"], {}).get("kinds", {})
        largest = sorted(((size, kind) for kind, size in found.items() if size), reverse=True)
        return Text("  ".join(f"{kind} {format_bytes(size)}" for size, kind in largest[:8]), no_wrap=True)

    def _label(self) -> str:
        assert self.process is not None
        return self.process["name"] or f"pid {self.process['pid']}"

    def _head(self) -> Text:
        source = "from the stats pages (no sidecar runs)" if self._client.is_direct else "from the sidecar"
        live = sum(one["state"] == "live" for one in self.processes)
        return Text(f"daf top  {time.strftime('%H:%M:%S')}  {live} live of {len(self.processes)}  {source}", "bold")

    def _process_table(self, width: int) -> RenderableType:
        if not self.processes:
            return Text("No DAF process. Start one: daf run --budget 2GiB train.py")
        table = _table_for(PROCESS_COLUMNS, width)
        for one in self.processes:
            found = self.stats.get(one["id"], {})
            is_chosen = one is self.process
            state = state_words(one)[:24] + (", paused" if found.get("values", {}).get("is_paused") else "")
            cells = [
                ">" if is_chosen else " ",
                one["name"][: max(10, min(24, width // 5))],
                str(one["pid"]),
                f"{one['rank']}/{one['world_size']}",
                Text(state, STATE_STYLES.get(one["state"], "")),
                *figure_cells(found.get("values", {}), found.get("derived", {})),
            ]
            table.add_row(*_shown(cells, PROCESS_COLUMNS, width), style="reverse" if is_chosen else "")
        return table

    def _slot_table(self, num_rows: int, width: int) -> Table:
        table = _table_for(SLOT_COLUMNS, width)
        for row in self.slots[: max(1, num_rows)]:
            held, raw = row["stored_bytes"], row["raw_bytes"]
            cells = [
                row["name"][-max(16, min(40, width // 3)) :],
                row["op"][:20],
                row["codec"][:12],
                f"{row['bits']:.1f}",
                Text("▇" * round(row["bits"]), "cyan"),
                format_bytes(held),
                format_bytes(raw),
                f"{raw / held:.1f}x" if held else "",
                f"{row['fidelity']:.3f}" if row.get("fidelity") else "",
            ]
            table.add_row(*_shown(cells, SLOT_COLUMNS, width))
        return table

    def _bar(self, width: int) -> Text:
        """Resident of budget as a bar, and what it was of late."""
        assert self.process is not None
        values = self.stats.get(self.process["id"], {}).get("values", {})
        budget, resident = values.get("budget_bytes", 0), values.get("resident_bytes", 0)
        length = max(10, min(40, width // 4))
        filled = round(length * min(1.0, resident / budget)) if budget else 0
        past = self.residents.get(self.process["id"], [])
        most = max([*past, 1.0])
        sparks = "".join(SPARKS[min(7, int(8 * size / most))] for size in past)
        text = f"{'█' * filled}{'░' * (length - filled)} {format_bytes(resident)} of {format_bytes(budget)}  {sparks}"
        return Text(text, "yellow" if budget and resident > 0.97 * budget else "blue", no_wrap=True)

    def _foot(self) -> Text:
        if self.typed is not None:
            return Text(f"new budget for {self._label()} (2GiB, 512MB, 50%): {self.typed}_", "bold yellow")
        return Text(f"{self.message}\n{KEYS}" if self.message else KEYS, "" if self.message else "dim")


def _table_for(columns: Columns, width: int) -> Table:
    return make_table(*(heading for heading, least_width in columns if width >= least_width))


def _shown(cells: list[Any], columns: Columns, width: int) -> list[Any]:
    return [cell for cell, (_, least_width) in zip(cells, columns, strict=True) if width >= least_width]


def run_top(client: Client, interval_seconds: float) -> None:
    """Paint until `q`. Without a terminal, print the screen once."""
    top, console = Top(client), Console()
    top.update()
    if not (sys.stdin.isatty() and console.is_terminal):
        console.print(top.render(50, console.width))
        return
    with _raw_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while not top.done:
            live.update(top.render(console.height, console.width), refresh=True)
            if not _press_all(top, interval_seconds):
                top.update()


def _press_all(top: Top, seconds: float) -> bool:
    """Wait for keys and press them; returns whether any came."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return False
    for key in _keys(os.read(sys.stdin.fileno(), 256).decode("utf-8", "ignore")):
        top.press(key)
    return True


def _keys(text: str) -> Iterator[str]:
    while text:
        escape = next((code for code in ESCAPES if text.startswith(code)), None)
        yield ESCAPES[escape] if escape else text[0]
        text = text[len(escape) if escape else 1 :]


@contextlib.contextmanager
def _raw_keys() -> Iterator[None]:
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
