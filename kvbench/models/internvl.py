"""InternVL3 in transformers' own format (the -hf checkpoints; arXiv 2504.10479): tiles, then a thumbnail."""

from __future__ import annotations

from typing import Any

from kvbench.models import toy
from kvbench.models.boxes import Box, covered
from kvbench.models.vision import VisionAdapter

SPECIAL = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}


def full(words: Any):
    """InternVL3-8B: InternViT-300M at 448 pixels, Qwen2.5-7B."""
    from transformers import Qwen2Config

    text = Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=151674,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6},
        tie_word_embeddings=False,
        eos_token_id=words.eos_token_id,
    )
    return _config(words, text, {"attention_bias": True})


def small(words: Any):
    """The same structure in miniature: tiles of 2 x 2 tokens."""
    from transformers import Qwen2Config

    rope = {"rope_type": "default", "rope_theta": 1e4}
    text = Qwen2Config(**toy.TEXT, vocab_size=len(words), rope_parameters=rope)
    vision = {
        "attention_bias": True,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": [56, 56],
        "layer_scale_init_value": 1.0,
        "initializer_range": 0.2,
    }
    return _config(words, text, vision)


def _config(words: Any, text: Any, vision: dict[str, Any]):
    from transformers import InternVLConfig, InternVLVisionConfig

    vision = InternVLVisionConfig(**vision)
    return InternVLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=words.convert_tokens_to_ids(SPECIAL["context_image_token"]),
        image_seq_length=(vision.image_size[0] // vision.patch_size[0] // 2) ** 2,
        tie_word_embeddings=False,
        initializer_range=text.initializer_range,
    )


class InternVLAdapter(VisionAdapter):
    """InternVL of any size; ordinary positions. Each frame of a clip is one tile."""

    types = ("internvl",)
    configs = {"toy": small, "full": full}

    @staticmethod
    def toy_tokenizer() -> Any:
        words = toy.tokenizer(list(SPECIAL.values()), **SPECIAL)
        words.chat_template = toy.chat_template(
            SPECIAL["context_image_token"] + "\n", SPECIAL["video_token"] + "\n"
        )
        return words

    @staticmethod
    def random_processor(config: Any, words: Any) -> Any:
        from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

        tall, wide = config.vision_config.image_size
        size = {"height": tall, "width": wide}
        return InternVLProcessor(
            image_processor=GotOcr2ImageProcessor(size=size, crop_to_patches=True),
            video_processor=InternVLVideoProcessor(size=size),
            tokenizer=words,
            image_seq_length=config.image_seq_length,
            chat_template=words.chat_template,
        )

    def image_options(self, max_pixels: int | None = None) -> dict[str, Any]:
        """At most `max_tiles` tiles a picture, the thumbnail not counted."""
        limit = self.options.get("max_tiles") or self.processor.image_processor.max_patches
        return {"crop_to_patches": True, "max_patches": limit}

    def box_tokens(self, size: tuple[int, int], box: Box) -> list[int]:
        """Tiles in reading order, rows of tokens inside each; then a thumbnail if there are several."""
        from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

        width, height = size
        images = self.processor.image_processor
        limits = images.min_patches, self.image_options()["max_patches"]
        tile = images.size["height"], images.size["width"]
        columns, rows = get_optimal_tiled_canvas((height, width), tile, *limits)
        count = self.processor.image_seq_length
        per_side = int(count**0.5)
        wide, high = width / columns, height / rows
        frames = [
            (column * wide, row * high, (column + 1) * wide, (row + 1) * high)
            for row in range(rows)
            for column in range(columns)
        ]
        if len(frames) > 1:
            frames.append((0, 0, width, height))
        return [
            index * count + row * per_side + column
            for index, frame in enumerate(frames)
            for row, column in covered(box, frame, per_side, per_side)
        ]


load = InternVLAdapter.load
