"""Models of Hugging Face's transformers, from tiny configurations with random weights."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.corpus.program import Compile, Step, program, state


def _trains(model: Any, compile: Compile, **batch: Any) -> Step:
    model.train()
    compiled = compile(model)

    def step() -> object:
        model.zero_grad()
        made = compiled(**batch)
        made.loss.backward()
        return made.logits.detach(), made.loss.detach(), state(model)

    return step


_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 64}


@program()
def hf_bert(compile: Compile) -> Step:
    """BertForSequenceClassification, trained."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**_TINY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = {"input_ids": torch.randint(0, 64, (2, 8)), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    return _trains(BertForSequenceClassification(config), compile, **batch, labels=torch.tensor([0, 1]))


@program()
def hf_gpt2(compile: Compile) -> Step:
    """GPT2LMHeadModel, trained."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    tokens = torch.randint(0, 64, (2, 8))
    return _trains(GPT2LMHeadModel(config), compile, input_ids=tokens, labels=tokens)


@program()
def hf_llama(compile: Compile) -> Step:
    """LlamaForCausalLM, trained."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = torch.randint(0, 64, (2, 8))
    config = LlamaConfig(**_TINY, num_key_value_heads=1, max_position_embeddings=16, use_cache=False)
    return _trains(LlamaForCausalLM(config), compile, input_ids=tokens, labels=tokens)


@program()
def hf_vit(compile: Compile) -> Step:
    """ViTForImageClassification, trained."""
    from transformers import ViTConfig, ViTForImageClassification

    shape = {name: value for name, value in _TINY.items() if name != "vocab_size"}
    config = ViTConfig(**shape, image_size=16, patch_size=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = ViTForImageClassification(config)
    return _trains(model, compile, pixel_values=torch.randn(2, 3, 16, 16), labels=torch.tensor([0, 1]))


@program()
def hf_t5(compile: Compile) -> Step:
    """T5ForConditionalGeneration, trained."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        vocab_size=64,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    tokens = torch.randint(1, 64, (2, 8))
    return _trains(T5ForConditionalGeneration(config), compile, input_ids=tokens, labels=tokens[:, :5].contiguous())
