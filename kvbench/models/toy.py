"""What a model with random weights reads with: a tokenizer and chat template that need no checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.errors import UserError

START, END = "<|im_start|>", "<|im_end|>"


def tokenizer(special: Sequence[str] = (), **named: str):
    """A byte tokenizer: ids 0 to 255 are the UTF-8 bytes, then START, END and the special tokens in order.

    named: attributes that a processor looks for, such as image_token="<image>".
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    core = Tokenizer(models.BPE(vocab={char: byte for byte, char in bytes_to_unicode().items()}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([START, END, *special])
    words = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=END, extra_special_tokens=named
    )
    words.chat_template = chat_template()
    return words


def chat_template(image: str = "", video: str = "") -> str:
    """Turns between START and END; `image` and `video` are what stands for a picture or a clip."""
    picture = "{% if part.type == 'image' %}" + image + "{% elif part.type == 'video' %}" + video
    parts = "{% for part in m.content %}" + picture + "{% else %}{{ part.text }}{% endif %}{% endfor %}"
    content = "{% if m.content is string %}{{ m.content }}{% else %}" + parts + "{% endif %}"
    turn = START + "{{ m.role }}\n" + content + END + "\n"
    return "{% for m in messages %}" + turn + "{% endfor %}" + START + "assistant\n"


# The wide initialisation makes attention sharp, so that a wrong position or a lost entry shows.
TEXT: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
}


def choose(sizes: dict[str, Any], size: str | None, name: str) -> Any:
    """The entry of a table of sizes; None is the toy. Raises UserError for a size that is not there."""
    size = size or "toy"
    if size not in sizes:
        raise UserError(f"model {name} has no random weights of size `{size}`: use {' or '.join(sizes)}.")
    return sizes[size]


def randomly(model_class: Any, config: Any, cfg: dict[str, Any], device: Any, dtype: Any) -> Any:
    """The model of a config with seeded random weights.

    A toy is drawn on the CPU, so that its answers are those of every device; larger ones, which are there
    to be timed, where they will run, as billions of weights take the CPU minutes.
    """
    import torch

    place = torch.device("cpu") if (cfg.get("size") or "toy") == "toy" else device
    devices = [place] if place.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), place:
        torch.manual_seed(cfg.get("seed") or 0)
        model = model_class.from_config(config, dtype=dtype).to(device)
    model.generation_config.eos_token_id = config.get_text_config(decoder=True).eos_token_id
    return model
