"""DAF as a callback of the frameworks people train with: on when training begins, off when it ends.

    Trainer(model, args, callbacks=[daf.integrations.transformers_callback(budget="2GiB")])
    lightning.Trainer(callbacks=[daf.integrations.lightning_callback(budget="2GiB")])

The settings are those of `daf.Session`. The framework is imported when its function is called, not before.
"""

from __future__ import annotations

from typing import Any

from daf.config import Config
from daf.session import Session


def transformers_callback(**settings: object) -> Any:
    """Return a `transformers.TrainerCallback` that keeps a session open while `Trainer.train()` runs."""
    from transformers import TrainerCallback

    class DafCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.session = Session(Config.read(settings))

        def on_train_begin(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.start()

        def on_train_end(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.close()

    return DafCallback()


def lightning_callback(**settings: object) -> Any:
    """Return a `lightning.Callback` that keeps a session open while `Trainer.fit()` runs, also when that fails."""
    from lightning import Callback

    class DafCallback(Callback):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.session = Session(Config.read(settings))

        def on_fit_start(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.start()

        def on_fit_end(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.close()

        def on_exception(self, *_args: Any, **_kwargs: Any) -> None:
            self.session.close()

    return DafCallback()
