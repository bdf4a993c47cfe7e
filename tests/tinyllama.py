"""A tiny Llama with random weights, and a tokenizer that spells ids, for tests of re-selection."""

import torch

from kvbench.models.base import Adapter


class Letters:
    """A tokenizer that spells ids."""

    eos_token_id = 1

    def decode(self, tokens, **_):
        return "".join(chr(97 + t % 26) for t in tokens)


def adapter(layers, heads, group, dim):
    """heads: KV heads; group: query heads of each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=heads * group * dim,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=heads * group,
        num_key_value_heads=heads,
        max_position_embeddings=512,
        initializer_range=0.25,
        attn_implementation="eager",
    )
    return Adapter("tiny", LlamaForCausalLM(config), Letters(), stop_ids=())
