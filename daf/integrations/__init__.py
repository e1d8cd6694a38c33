"""DAF in the frameworks and trackers that people train with, in one line each.

    Trainer(model, args, callbacks=[daf.integrations.transformers_callback(budget="2GiB")])
    lightning.Trainer(callbacks=[daf.integrations.lightning_callback(budget="2GiB")])
    daf.integrations.log(target, step=step)   # W&B run, MLflow, TensorBoard writer, Accelerator, Lightning logger
    daf.integrations.figures()                # the ten figures as a dict

A callback keeps a session open while training runs, and logs DAF's figures to whatever the framework reports to. The
settings are those of `daf.Session`. A framework is imported when its function is called, not before. With
OTEL_EXPORTER_OTLP_ENDPOINT set and the extra `otel` installed, every session sends its figures there.
"""

from daf.integrations.callbacks import lightning_callback, transformers_callback
from daf.integrations.figures import FIGURES, figures
from daf.integrations.trackers import log, wandb_endpoint

__all__ = ["FIGURES", "figures", "lightning_callback", "log", "transformers_callback", "wandb_endpoint"]
