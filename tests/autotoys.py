"""Small checkpoints, random weights of the true class, of architectures that kvbench has no adapter for."""

from __future__ import annotations

from typing import Any

import transformers as hf

from kvbench.models import toy

ROPE = {"rope_type": "default", "rope_theta": 1e4}
TILE = {"height": 56, "width": 56}
IMAGE = "<image>"
TEXTS: dict[str, dict[str, Any]] = {
    "Cohere": {},
    "Ernie4_5": {},
    "GPTNeoX": {"num_key_value_heads": 6},  # one a query head
    "Gemma": {"head_dim": 16},
    "Glm4": {"head_dim": 16},
    "Granite": {"attention_multiplier": 0.5},
    "Helium": {"head_dim": 16},
    "Llama": {},
    "Mistral": {"head_dim": 16, "sliding_window": None},
    "Olmo2": {},
    "Phi3": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "SmolLM3": {},
}


def save(name: str, folder: Any) -> None:
    """Write the checkpoint of an entry of TEXTS or PICTURES."""
    import torch

    torch.manual_seed(0)
    config, reader = _text(name) if name in TEXTS else PICTURES[name]()
    loader = hf.AutoModelForCausalLM if name in TEXTS else hf.AutoModelForImageTextToText
    model = loader.from_config(config)
    model.generation_config.eos_token_id = 257
    model.save_pretrained(folder)
    reader.save_pretrained(folder)


def _text(name: str) -> tuple[Any, Any]:
    words = toy.tokenizer()
    return _decoder(name, words, **TEXTS[name]), words


def _decoder(name: str, words: Any, **options: Any) -> Any:
    return getattr(hf, f"{name}Config")(
        **{**toy.TEXT, "vocab_size": len(words), "rope_parameters": ROPE, **options}
    )


def _words(special: tuple[str, ...], picture: str, **named: str) -> Any:
    words = toy.tokenizer(special, **named)
    words.chat_template = toy.chat_template(picture)
    return words


_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "patch_size": 14}


def _clip() -> Any:
    return hf.CLIPVisionConfig(
        **_TOWER, num_hidden_layers=3, image_size=56, projection_dim=32, initializer_factor=4.0
    )


def _siglip(**options: Any) -> Any:
    return hf.SiglipVisionConfig(**_TOWER, num_hidden_layers=3, image_size=56, **options)


def _pixtral_tower() -> Any:
    return hf.PixtralVisionConfig(**_TOWER, num_hidden_layers=2, image_size=112)


def llava() -> tuple[Any, Any]:
    words = _words((IMAGE,), f"{IMAGE}\n")
    token = words.convert_tokens_to_ids(IMAGE)
    config = hf.LlavaConfig(
        vision_config=_clip(),
        text_config=_decoder("Llama", words),
        image_token_index=token,
        image_seq_length=16,
    )
    images = hf.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size=TILE)
    return config, hf.LlavaProcessor(
        image_processor=images,
        tokenizer=words,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=words.chat_template,
    )


def llava_onevision() -> tuple[Any, Any]:
    words = _words((IMAGE, "<video>"), f"{IMAGE}\n")
    places = [[56, 112], [112, 56], [112, 112]]
    config = hf.LlavaOnevisionConfig(
        vision_config=_siglip(vision_use_head=False),
        text_config=_decoder("Qwen2", words),
        image_token_index=words.convert_tokens_to_ids(IMAGE),
        video_token_index=words.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=places,
    )
    return config, hf.LlavaOnevisionProcessor(
        image_processor=hf.LlavaOnevisionImageProcessor(size=TILE, image_grid_pinpoints=places),
        tokenizer=words,
        video_processor=hf.LlavaOnevisionVideoProcessor(size=TILE),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=words.chat_template,
    )


def idefics3() -> tuple[Any, Any]:
    named = {
        "image_token": IMAGE,
        "fake_image_token": "<fake_token_around_image>",
        "global_image_token": "<global-img>",
        "end_of_utterance_token": "<end_of_utterance>",
    }
    places = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    words = _words((*named.values(), *places), IMAGE, **named)
    config = hf.Idefics3Config(
        vision_config=hf.Idefics3VisionConfig(**_TOWER, num_hidden_layers=2, image_size=56),
        text_config=_decoder("Llama", words),
        image_token_id=words.convert_tokens_to_ids(IMAGE),
        scale_factor=2,
    )
    images = hf.Idefics3ImageProcessor(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})
    return config, hf.Idefics3Processor(
        image_processor=images, tokenizer=words, image_seq_len=4, chat_template=words.chat_template
    )


def _pixtral(merge: int) -> tuple[Any, Any]:
    words = _words(("[IMG]", "[IMG_BREAK]", "[IMG_END]"), "[IMG]")
    images = hf.PixtralImageProcessor(size={"longest_edge": 112}, patch_size={"height": 14, "width": 14})
    return words, hf.PixtralProcessor(
        image_processor=images,
        tokenizer=words,
        patch_size=14,
        spatial_merge_size=merge,
        chat_template=words.chat_template,
    )


def mistral3() -> tuple[Any, Any]:
    words, processor = _pixtral(2)
    config = hf.Mistral3Config(
        vision_config=_pixtral_tower(),
        text_config=_decoder("Mistral", words, **TEXTS["Mistral"]),
        image_token_index=words.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
    )
    return config, processor


def pixtral() -> tuple[Any, Any]:
    words, processor = _pixtral(1)
    config = hf.LlavaConfig(
        vision_config=_pixtral_tower(),
        text_config=_decoder("Mistral", words, **TEXTS["Mistral"]),
        image_token_index=words.convert_tokens_to_ids("[IMG]"),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_seq_length=1,
    )
    return config, processor


def aya_vision() -> tuple[Any, Any]:
    special = (IMAGE, "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>")
    words = _words((*special, "TILE", "TILE_GLOBAL"), IMAGE)
    config = hf.AyaVisionConfig(
        vision_config=_siglip(),
        text_config=_decoder("Cohere", words),
        image_token_index=words.convert_tokens_to_ids("<|IMG_PATCH|>"),
        downsample_factor=2,
        adapter_layer_norm_eps=1e-6,
    )
    images = hf.GotOcr2ImageProcessor(size=TILE, crop_to_patches=True, max_patches=4)
    return config, hf.AyaVisionProcessor(
        image_processor=images,
        tokenizer=words,
        patch_size=14,
        img_size=56,
        downsample_factor=2,
        image_token=IMAGE,
        chat_template=words.chat_template,
    )


def glm4v() -> tuple[Any, Any]:
    kinds = {
        kind: (f"<|begin_of_{kind}|>", f"<|{kind}|>", f"<|end_of_{kind}|>") for kind in ("image", "video")
    }
    words = _words(
        (*kinds["image"], *kinds["video"]),
        "".join(kinds["image"]),
        image_token="<|image|>",
        video_token="<|video|>",
    )
    rope = {**ROPE, "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0}
    tower = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 96}
    ids = {}
    for kind, tokens in kinds.items():
        names = (f"{kind}_start_token_id", f"{kind}_token_id", f"{kind}_end_token_id")
        ids |= dict(zip(names, words.convert_tokens_to_ids(list(tokens)), strict=True))
    config = hf.Glm4vConfig(
        vision_config={**tower, "image_size": 112, "patch_size": 14},
        text_config={**toy.TEXT, "vocab_size": len(words), "rope_parameters": rope, "head_dim": 16},
        **ids,
    )
    pixels = {"patch_size": 14, "merge_size": 2}
    pixels["size"] = {"shortest_edge": 4 * 28 * 28, "longest_edge": 64 * 28 * 28}
    return config, hf.Glm4vProcessor(
        image_processor=hf.Glm4vImageProcessor(**pixels),
        tokenizer=words,
        video_processor=hf.Glm4vVideoProcessor(**pixels),
        chat_template=words.chat_template,
    )


def paligemma() -> tuple[Any, Any]:
    """Its prompt attends to all of itself: no causal mask."""
    words = _words((IMAGE,), IMAGE)
    words.bos_token = toy.START
    config = hf.PaliGemmaConfig(
        vision_config=_siglip(),
        text_config=_decoder("Gemma", words, head_dim=16),
        image_token_index=words.convert_tokens_to_ids(IMAGE),
        projection_dim=96,
        hidden_size=96,
    )
    images = hf.SiglipImageProcessor(size=TILE)
    images.image_seq_length = 16
    return config, hf.PaliGemmaProcessor(
        image_processor=images, tokenizer=words, chat_template=words.chat_template
    )


PICTURES = {
    "aya_vision": aya_vision,
    "glm4v": glm4v,
    "idefics3": idefics3,
    "llava": llava,
    "llava_onevision": llava_onevision,
    "mistral3": mistral3,
    "paligemma": paligemma,
    "pixtral": pixtral,
}
