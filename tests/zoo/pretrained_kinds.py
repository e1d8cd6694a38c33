"""Architectures of transformers, from their configs at toy size: weights are drawn, nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo import data
from tests.zoo.member import Member, adam, kind, seeded

VOCAB = 96
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def causal_loss(model: Any, batch: Tensor) -> Tensor:
    return model(input_ids=batch, labels=batch).loss  # type: ignore[no-any-return]


def padded_loss(model: Any, batch: Tensor) -> Tensor:
    """The padding token comes first, as generation wants it: its embedding is a row of exact zeros."""
    mask = (batch != 0).long()
    return model(input_ids=batch, attention_mask=mask, labels=batch.masked_fill(batch == 0, -100)).loss  # type: ignore[no-any-return]


def padded_tokens(seed: int, **sizes: int) -> Any:
    plain = data.tokens(seed, **sizes)

    def make(number: int) -> Tensor:
        batch = plain(number)
        starts = torch.randint(1, sizes["length"] // 2, (sizes["batch"], 1), generator=seeded(seed + 7, number))
        return batch.masked_fill(torch.arange(sizes["length"]) < starts, 0)

    return make


def causal(seed: int, config: Any, *, is_padded: bool = False, lr: float = 2e-3) -> Member:
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_config(config).train()
    batches = (padded_tokens if is_padded else data.tokens)(seed, batch=8, length=48, vocab=VOCAB)
    return Member(model, padded_loss if is_padded else causal_loss, batches, adam(model, lr))


@kind(needs="transformers", long_steps=200)
def gpt2(seed: int) -> Member:
    from transformers import GPT2Config

    return causal(seed, GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=64, n_layer=2, n_head=4))


@kind(needs="transformers")
def gpt2_eager(seed: int) -> Member:
    from transformers import GPT2Config

    sizes = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
    return causal(seed, GPT2Config(**sizes, attn_implementation="eager"))


@kind(needs="transformers")
def llama_padded(seed: int) -> Member:
    from transformers import LlamaConfig

    config = LlamaConfig(vocab_size=VOCAB, num_key_value_heads=2, pad_token_id=0, **SMALL)
    return causal(seed, config, is_padded=True)


@kind(needs="transformers")
def qwen3_padded(seed: int) -> Member:
    from transformers import Qwen3Config

    config = Qwen3Config(vocab_size=VOCAB, num_key_value_heads=2, head_dim=16, pad_token_id=0, **SMALL)
    return causal(seed, config, is_padded=True)


@kind(needs="transformers")
def mixtral_padded(seed: int) -> Member:
    from transformers import MixtralConfig

    config = MixtralConfig(vocab_size=VOCAB, num_key_value_heads=2, num_local_experts=4, pad_token_id=0, **SMALL)
    return causal(seed, config, is_padded=True)


@kind(needs="transformers")
def gemma2(seed: int) -> Member:
    from transformers import Gemma2Config

    config = Gemma2Config(vocab_size=VOCAB, num_key_value_heads=2, head_dim=16, pad_token_id=0, **SMALL)
    return causal(seed, config, is_padded=True)


@kind(needs="transformers")
def opt(seed: int) -> Member:
    from transformers import OPTConfig

    config = OPTConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        ffn_dim=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=64,
    )
    return causal(seed, config)


@kind(needs="transformers")
def mamba(seed: int) -> Member:
    from transformers import MambaConfig

    config = MambaConfig(vocab_size=VOCAB, hidden_size=64, state_size=8, num_hidden_layers=1, use_mambapy=False)
    return causal(seed, config)


@kind(needs="transformers")
def rwkv(seed: int) -> Member:
    from transformers import RwkvConfig

    config = RwkvConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, context_length=64)
    return causal(seed, config)


@kind(needs="transformers")
def bert(seed: int) -> Member:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(vocab_size=VOCAB, max_position_embeddings=64, **SMALL)).train()

    def loss(model: Any, batch: Tensor) -> Tensor:
        is_hidden = torch.arange(batch.shape[1]) % 5 == 2
        labels = batch.masked_fill(~is_hidden, -100)
        return model(input_ids=batch.masked_fill(is_hidden, 0), labels=labels).loss  # type: ignore[no-any-return]

    return Member(model, loss, data.tokens(seed, batch=8, length=48, vocab=VOCAB), adam(model, 2e-3))


@kind(needs="transformers")
def t5(seed: int) -> Member:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config).train()

    def loss(model: Any, batch: Tensor) -> Tensor:
        return model(input_ids=batch, labels=batch.flip(1)).loss  # type: ignore[no-any-return]

    return Member(model, loss, data.tokens(seed, batch=8, length=32, vocab=VOCAB), adam(model, 2e-3))


@kind(needs="transformers")
def vit(seed: int) -> Member:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=4, num_labels=10, **SMALL)).train()

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(pixel_values=batch[0], labels=batch[1]).loss  # type: ignore[no-any-return]

    return Member(model, loss, data.images(seed, batch=8, size=32), adam(model))


@kind(needs="transformers")
def convnext(seed: int) -> Member:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[32, 64], depths=[1, 1], num_stages=2, image_size=32, num_labels=10)
    model = ConvNextForImageClassification(config).train()

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(pixel_values=batch[0], labels=batch[1]).loss  # type: ignore[no-any-return]

    return Member(model, loss, data.images(seed, batch=32, size=32), adam(model))


@kind(needs="transformers")
def whisper(seed: int) -> Member:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = WhisperForConditionalGeneration(config).train()
    ids = data.tokens(seed, batch=8, length=24, vocab=VOCAB)

    def make(number: int) -> tuple[Tensor, Tensor]:
        labels = ids(number)
        sound = torch.randn(8, 16, 100, generator=seeded(seed, number))
        return sound + labels.float().mean(1)[:, None, None] / VOCAB, labels

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(input_features=batch[0], labels=batch[1]).loss  # type: ignore[no-any-return]

    return Member(model, loss, make, adam(model, 2e-3))


@kind(needs="transformers")
def clip(seed: int) -> Member:
    from transformers import CLIPConfig, CLIPModel

    text = {**SMALL, "vocab_size": VOCAB, "max_position_embeddings": 24, "eos_token_id": 2}
    config = CLIPConfig(text_config=text, vision_config={**SMALL, "image_size": 32, "patch_size": 8}, projection_dim=32)
    model = CLIPModel(config).train()
    pictures = data.images(seed, batch=16, size=32, classes=16)

    def make(number: int) -> tuple[Tensor, Tensor]:
        pixels, labels = pictures(number)
        return pixels, (labels[:, None] * 5 + torch.arange(24) % 5 + 3).clamp(max=VOCAB - 1)

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(pixel_values=batch[0], input_ids=batch[1], return_loss=True).loss  # type: ignore[no-any-return]

    return Member(model, loss, make, adam(model))
