"""Hugging Face Trainer with one callback: `python examples/trainer.py`. Random weights, so nothing is downloaded."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import daf


class Tokens(Dataset):
    """Sequences that count upwards: something to learn."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(64) + index) % 100
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=6,
        per_device_train_batch_size=8,
        logging_steps=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    callback = daf.integrations.transformers_callback(budget="1GiB", ratio=8)
    trainer = Trainer(model, arguments, train_dataset=Tokens(), callbacks=[callback])
    trainer.train()
print({name: value for name, value in trainer.state.log_history[-2].items() if name.startswith("daf/")})
