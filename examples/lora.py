"""LoRA on a frozen model with peft: `python examples/lora.py`. Random weights, so nothing is downloaded."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import daf

torch.manual_seed(0)
base = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=128, n_embd=128, n_layer=2, n_head=2))
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)

with daf.Session(budget="1GiB", ratio=8) as session:
    for _ in range(5):
        tokens = torch.randint(100, (8, 128))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print(session)
