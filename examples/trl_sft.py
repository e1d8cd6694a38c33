"""Fine-tuning with TRL and one callback: `python examples/trl_sft.py`. Random weights, so nothing is downloaded."""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import daf

torch.manual_seed(0)
WORDS = ["<pad>", "<eos>", *(str(number) for number in range(100))]
words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
counting = [" ".join(str((start + step) % 100) for step in range(64)) for start in range(64)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_positions=128, n_embd=64, n_layer=2, n_head=2))

with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        folder,
        max_steps=6,
        per_device_train_batch_size=8,
        max_length=64,
        logging_steps=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    callback = daf.integrations.transformers_callback(budget="1GiB", ratio=8)
    trainer = SFTTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_dict({"text": counting}),
        processing_class=tokenizer,
        callbacks=[callback],
    )
    trainer.train()
print({name: value for name, value in trainer.state.log_history[-2].items() if name.startswith("daf/")})
