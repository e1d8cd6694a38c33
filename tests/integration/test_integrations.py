# ruff: noqa: ARG001  (a fixture that is only switched on is an argument all the same)
"""DAF's figures arrive where people look for them, through the real packages."""

from __future__ import annotations

import http.server
import pathlib
import threading
import time
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import daf
from daf.integrations import FIGURES, figures, log


@pytest.fixture
def runtime(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


@pytest.fixture
def session(runtime: pathlib.Path) -> Iterator[daf.Session]:
    with daf.Session(budget="256MiB", cpu_allocator="off") as opened:
        train()
        yield opened


def train(num_steps: int = 2) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    for _ in range(num_steps):
        model(torch.randn(256, 64)).sum().backward()


def test_there_are_ten_figures_and_they_outlive_the_session(session: daf.Session) -> None:
    assert len(FIGURES) == 10
    open_figures = figures()
    assert set(open_figures) == {f"daf/{name}" for name in FIGURES}
    session.close()
    assert figures() == {}
    assert figures(session)["daf/budget_bytes"] == 256 * 2**20


def test_a_target_that_cannot_be_logged_to_is_quoted() -> None:
    with pytest.raises(ValueError, match="'paper'"):
        log("paper", step=1)


def test_figures_arrive_in_tensorboard_files(session: daf.Session, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard's own
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path / "tb")) as writer:
            log(writer, step=3)
        events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert events.Scalars("daf/budget_bytes")[0].value == 256 * 2**20
    assert events.Scalars("daf/budget_bytes")[0].step == 3


def test_figures_arrive_in_an_mlflow_store(
    session: daf.Session, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mlflow's own
        mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
        with mlflow.start_run() as run:
            log(mlflow, step=2)
        stored = mlflow.get_run(run.info.run_id).data.metrics
    assert stored["daf/budget_bytes"] == 256 * 2**20
    assert set(stored) == {f"daf/{name}" for name in FIGURES}


def test_figures_arrive_in_wandb_offline_files(
    session: daf.Session, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wandb's own
        run = wandb.init(project="daf", dir=str(tmp_path), settings=wandb.Settings(x_disable_stats=True))
        log(run, step=1)
        run.finish()
    (file,) = tmp_path.rglob("*.wandb")
    deadline = time.monotonic() + 60
    while b"daf/budget_bytes" not in file.read_bytes():  # wandb's own process writes it when it gets to it
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_wandb_knows_the_endpoint_setting() -> None:
    wandb = pytest.importorskip("wandb")
    settings = wandb.Settings(**daf.integrations.wandb_endpoint("http://127.0.0.1:9/"))
    assert settings.x_stats_open_metrics_endpoints["daf"] == "http://127.0.0.1:9/metrics"


class Receiver(http.server.BaseHTTPRequestHandler):
    """An OTLP collector that keeps what it is sent."""

    bodies: list[bytes]

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: object) -> None: ...


def test_figures_arrive_at_an_otlp_receiver(runtime: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    handler = type("Handler", (Receiver,), {"bodies": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        with daf.Session(budget="256MiB", cpu_allocator="off"):
            train()
        server.shutdown()
    sent = ExportMetricsServiceRequest.FromString(handler.bodies[-1])
    metrics = {
        metric.name for item in sent.resource_metrics for scope in item.scope_metrics for metric in scope.metrics
    }
    assert metrics == {f"daf.{name}" for name in FIGURES}


def test_the_trainers_log_has_the_figures(runtime: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.layer(x) - labels).square().mean()}

    rows = [{"x": torch.randn(16), "labels": torch.zeros(1)} for _ in range(8)]
    arguments = transformers.TrainingArguments(
        str(runtime / "out"), max_steps=2, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
    )
    callback = daf.integrations.transformers_callback(budget="256MiB", cpu_allocator="off")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the framework's own
        trainer = transformers.Trainer(Net(), arguments, train_dataset=rows, callbacks=[callback])
        trainer.train()
    assert trainer.state.log_history[0]["daf/budget_bytes"] == 256 * 2**20
    assert daf.active() is None


def test_lightnings_logger_gets_the_figures(runtime: pathlib.Path) -> None:
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 1)

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = daf.integrations.lightning_callback(budget="256MiB", cpu_allocator="off")
    logger = CSVLogger(str(runtime / "csv"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the framework's own
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=logger,
            callbacks=[callback],
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(8, 16), batch_size=4))
    assert "daf/budget_bytes" in next(pathlib.Path(logger.log_dir).glob("metrics.csv")).read_text()
    assert daf.active() is None
