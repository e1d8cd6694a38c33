"""A session as a callback: on when training begins, off when it ends, its figures wherever the framework reports to."""

from __future__ import annotations

from typing import Any

from daf.config import Config
from daf.integrations.figures import figures
from daf.session import Session


def transformers_callback(**settings: object) -> Any:
    """Return a `transformers.TrainerCallback` that keeps a session open while `Trainer.train()` runs.

    DAF's figures join every record that the Trainer logs, and so reach all that `report_to` names.
    """
    from transformers import TrainerCallback

    class DafCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.session = Session(Config.read(settings))

        def on_train_begin(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.start()

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002  (its own names)
            found = figures(self.session)
            if kwargs.get("logs") is not None:
                kwargs["logs"].update(found)  # the dict that the callbacks after this one report
            if state.log_history:
                state.log_history[-1].update(found)

        def on_train_end(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.close()

    return DafCallback()


def lightning_callback(**settings: object) -> Any:
    """Return a `lightning.Callback` that keeps a session open while `Trainer.fit()` runs, also when that fails.

    DAF's figures go to the Trainer's loggers every `log_every_n_steps` steps.
    """
    from lightning import Callback

    class DafCallback(Callback):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.session = Session(Config.read(settings))

        def on_fit_start(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.start()

        def on_train_batch_end(self, trainer: Any, *_args: Any, **_kwargs: Any) -> None:
            if trainer.global_step % trainer.log_every_n_steps == 0:
                for logger in trainer.loggers:
                    logger.log_metrics(figures(self.session), step=trainer.global_step)

        def on_fit_end(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.close()

        def on_exception(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.close()

    return DafCallback()
