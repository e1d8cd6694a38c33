"""The shapes of the API: what OpenAPI shows is what these say."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

SIZE_PATTERN = r"^\s*(\d{1,18}(\.\d{0,6})?|\.\d{1,6})\s*(%|[kKmMgGtT]?[bB]?|[kKmMgGtT][iI][bB]?)\s*$"
MAX_SIZE_CHARS = 40
_SIZE = re.compile(SIZE_PATTERN)
MAX_BYTES = 2**53  # what every JSON reader holds exactly

State = Literal["live", "finished", "crashed", "unreadable"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Ending(BaseModel):
    """How a run ended."""

    how: Literal["finished", "failed", "interrupted", "terminated", "out of memory", "killed"]
    code: int = Field(description="The exit code of a run that failed without an exception; else 0.")
    signal: int = Field(description="The signal that ended it; else 0.")
    exception: str
    message: str
    text: str = Field(description="All of that in a few words.")


class Process(BaseModel):
    """One training process."""

    id: str = Field(description="`<pid>-<start time>`: never used twice.", examples=["4711-90210"])
    pid: int
    name: str = Field(description="What the run is called; settable with DAF_NAME.")
    state: State = Field(description="crashed: failed, out of memory or killed; finished: any other end.")
    job: str = Field(description="The job that its launcher named; a process on its own is a job of one.")
    host: str = Field(description="Its machine; a node's name in Slurm and Kubernetes; settable with DAF_HOST.")
    pod: str = Field(description="Its pod, where it runs in Kubernetes and POD_NAME is set.")
    namespace: str
    launcher: str = Field(description="What said its rank: torchrun, slurm, mpi, kubernetes; empty without ranks.")
    rank: int
    local_rank: int
    world_size: int
    device: str
    argv: list[str] = Field(description="Its command line, which may hold secrets: only for who has the token.")
    started_at: float = Field(description="Seconds since 1970.")
    ended_at: float | None = Field(description="When the sidecar saw that it had ended.")
    ending: Ending | None = Field(description="How it ended; null while it lives.")
    heartbeat_age_seconds: float | None
    versions: dict[str, str]
    error: str = Field(description="Why the page could not be read, if so; else empty.")


class Job(BaseModel):
    """The ranks of one job."""

    id: str
    name: str
    state: State = Field(description="live while any rank is; crashed if any rank crashed.")
    world_size: int
    processes: list[str]


class Processes(BaseModel):
    processes: list[Process]
    jobs: list[Job]


class Figures(BaseModel):
    """The numbers of one process now."""

    process: str
    state: State
    time: float
    heartbeat_age_seconds: float
    values: dict[str, float] = Field(description="Everything the process publishes, by field name.")
    derived: dict[str, float] = Field(description="Ratios worked out of `values`.")
    kinds: dict[str, int] = Field(
        description="Memory by kind: parameters, gradients, optimizer, exact, compressed, temporaries and cached "
        "add up to `resident_bytes`; `outside` is the rest of the process."
    )


class Stats(BaseModel):
    time: float
    processes: list[Figures]


class FieldInfo(BaseModel):
    """A number that a process publishes, as it describes it itself."""

    name: str
    kind: str
    unit: str
    help: str


class Fields(BaseModel):
    process: str
    fields: list[FieldInfo]


class HistoryAnswer(BaseModel):
    """Columns over time, all of the length of `times`."""

    process: str
    step_seconds: float
    times: list[float]
    series: dict[str, list[float]]


class SlotsAnswer(BaseModel):
    """The places in the model where tensors are saved."""

    process: str
    time: float
    total: int = Field(description="How many slots match, of which `slots` is one part.")
    slots: list[dict[str, Any]]


class WidthsAnswer(BaseModel):
    """Bits by slot over the whole run.

    `runs[i]` says of slot `slots[i]` for how many of `times` it had a width, then that width, and so on in turn; null
    where it was not there.
    """

    process: str
    step_seconds: float
    times: list[float]
    slots: list[int]
    runs: list[list[float | None]]


class VerdictAnswer(BaseModel):
    """What to make of a run: the gravest finding first, none without data."""

    process: str
    verdicts: list[dict[str, Any]] = Field(
        description="Each with `rule`, `level` (good, note, warning, trouble), `text`, `evidence` and `action`."
    )


class ProfileAnswer(BaseModel):
    """The allocation profile: who held what when tensors took most."""

    process: str
    time: float = Field(description="When it was written.")
    peak_bytes: int
    peak_at: float
    look_share: float = Field(description="Share of the run's time that looking at stacks took.")
    tree: dict[str, Any] = Field(description="A flame graph: `name`, `bytes`, `children`.")
    lines: list[dict[str, Any]] = Field(description="`file`, `line`, `function`, `bytes`, `blocks`, most first.")
    modules: list[dict[str, Any]] = Field(description="`module` and `bytes`, most first.")


class ProfileAsked(BaseModel):
    """Whether a profile is there now: pending where the process first has to make a step."""

    process: str
    state: Literal["applied", "pending"]


class ModulesAnswer(BaseModel):
    """Memory by module of the model."""

    process: str
    has_profile: bool = Field(description="Whether GET /v1/profile has an answer.")
    tree: dict[str, Any] = Field(description="`name`, `bytes`, `children`: modules by their names, then kinds.")
    modules: list[dict[str, Any]] = Field(
        description="`module`, `parameters`, `gradients`, `optimizer`, `activations` as stored and `activations_raw` "
        "as plain training would keep them, in bytes."
    )


class MapAnswer(BaseModel):
    """The arena's address ranges and what occupies them."""

    process: str
    map: dict[str, Any]


class EventsAnswer(BaseModel):
    """Events, oldest first. Ask again with `since` = `next`."""

    events: list[dict[str, Any]]
    next: int
    lost: int = Field(description="Events that were asked for and are no longer kept.")
    epoch: str = Field(description="Changes when the sidecar restarts; the numbers then begin anew.")


class BudgetState(BaseModel):
    """The budget of one process."""

    process: str
    job: str
    rank: int
    budget_bytes: int
    resident_bytes: int
    least_bytes: int = Field(description="The smallest budget that the process would take now.")
    paused: bool = Field(description="Whether compression is paused.")


class Budgets(BaseModel):
    processes: list[BudgetState]


class BudgetChange(_Strict):
    """The wish."""

    budget: (
        Annotated[int, Field(ge=1, le=MAX_BYTES, strict=True)]
        | Annotated[str, Field(pattern=SIZE_PATTERN, max_length=MAX_SIZE_CHARS)]
    ) = Field(
        description="Bytes, a size (`2GiB`, `512MB`) or a part of the budget that the process started with (`50%`). "
        "Each selected process gets it.",
        examples=["2GiB"],
    )

    @field_validator("budget", mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        """JSON knows no integers: 1024.0 is one. What is no size is quoted; the pattern alone would quote itself."""
        if isinstance(value, float) and value.is_integer():
            return int(value)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number and not (isinstance(value, str) and len(value) <= MAX_SIZE_CHARS and _SIZE.fullmatch(value)):
            raise ValueError(f"{str(value)[:MAX_SIZE_CHARS]!r} is not a size such as 2GiB, 512MB, 1073741824 or 50%")
        if isinstance(value, int) and not 1 <= value <= MAX_BYTES:
            raise ValueError(f"{str(value)[:MAX_SIZE_CHARS]} bytes are no budget: it has 1 to {MAX_BYTES}")
        return value


class SlotPreview(BaseModel):
    """What a smaller budget would take from one slot."""

    slot: int
    name: str
    bits: float
    bits_after: float
    freed_bytes: int


class Preview(BaseModel):
    """An estimate of what the budget would do now: the arena itself decides when it comes to it."""

    freed_bytes: int = Field(description="What would have to go.")
    cached_bytes: int = Field(description="Of that, free memory that is only kept for reuse.")
    evicted_bytes: int = Field(description="Of that, bit planes.")
    short_bytes: int = Field(description="What could not be freed by dropping planes.")
    slots: list[SlotPreview]


class OutcomeAnswer(BaseModel):
    """What became of the wish for one process."""

    process: str
    state: Literal["applied", "pending", "refused", "preview"]
    budget_bytes: int = Field(description="The budget that was asked for.")
    before_bytes: int
    resident_bytes: int
    least_bytes: int
    reason: str
    generation: int = Field(description="The number of the command; 0 where none was needed.")
    seconds: float = Field(description="From the request to the outcome.")
    preview: Preview | None = None


class BudgetOutcome(BaseModel):
    state: Literal["applied", "pending", "refused", "preview"] = Field(description="The worst of the outcomes.")
    outcomes: list[OutcomeAnswer]


class Forgotten(BaseModel):
    processes: list[str] = Field(description="The ids of the processes that are no longer known.")


class CompressionChange(_Strict):
    paused: bool = Field(strict=True)


class CompressionOutcome(BaseModel):
    state: Literal["applied", "pending", "refused"]
    outcomes: list[OutcomeAnswer]


class Trace(BaseModel):
    """A Chrome trace document."""

    display_time_unit: str = Field(alias="displayTimeUnit")
    trace_events: list[dict[str, Any]] = Field(alias="traceEvents")


class Report(BaseModel):
    """One run: what the other routes say of it, under one roof."""

    made_at: float
    version: str
    process: Process
    fields: list[FieldInfo]
    stats: Figures
    history: dict[str, Any]
    slots: list[dict[str, Any]]
    widths: dict[str, Any]
    map: dict[str, Any]
    events: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]
    modules: dict[str, Any] = Field(description="What `/v1/modules` answers.")
    profile: dict[str, Any] | None = Field(description="What `/v1/profile` answers; null without a profile.")


class Login(_Strict):
    code: str = Field(min_length=1, max_length=128, description="The one-time code of the link.")


class Session(BaseModel):
    key: str = Field(description="Send it as a bearer token. Ends with the sidecar.")


class Link(BaseModel):
    url: str = Field(description="Opens the page with the right to change things, once.")


class Health(BaseModel):
    status: Literal["ok"]
    version: str
    live: int
    pid: int
