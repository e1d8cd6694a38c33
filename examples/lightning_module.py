"""Lightning with one callback: `python examples/lightning_module.py`."""

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import daf


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


data = TensorDataset(torch.randn(1024, 64), torch.randint(10, (1024,)))
callback = daf.integrations.lightning_callback(budget="1GiB", ratio=8)
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=CSVLogger("build/lightning"),
    callbacks=[callback],
    log_every_n_steps=2,
    enable_progress_bar=False,
    enable_checkpointing=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), DataLoader(data, batch_size=256))
print(callback.session)
