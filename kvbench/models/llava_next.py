"""LLaVA-NeXT (LLaVA 1.6): an overview of the picture, then its tiles, each row ended by a newline."""

from __future__ import annotations

import math
from typing import Any

from kvbench.models import toy
from kvbench.models.boxes import Box, covered
from kvbench.models.vision import VisionAdapter

IMAGE = "<image>"
TILE = 336  # pixels along the side of a tile of the published model


def _pinpoints(tile: int) -> list[list[int]]:
    """Canvases that a picture may be fitted to, (height, width)."""
    return [[tile * rows, tile * columns] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]


def full(words: Any):
    """LLaVA-v1.6-Mistral-7B: CLIP ViT-L/14 at 336 pixels, Mistral-7B-Instruct-v0.2."""
    from transformers import CLIPVisionConfig, MistralConfig

    text = MistralConfig(
        vocab_size=32064,
        max_position_embeddings=32768,
        sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        eos_token_id=words.eos_token_id,
    )
    vision = CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        image_size=TILE,
        patch_size=14,
        projection_dim=768,
    )
    return _config(words, text, vision)


def small(words: Any):
    """The same structure in miniature: tiles of 4 x 4 patches."""
    from transformers import CLIPVisionConfig, MistralConfig

    rope = {"rope_type": "default", "rope_theta": 1e4}
    text = MistralConfig(
        **toy.TEXT, head_dim=16, vocab_size=len(words), sliding_window=None, rope_parameters=rope
    )
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
        projection_dim=32,
        initializer_factor=4.0,
    )
    return _config(words, text, vision)


def _config(words: Any, text: Any, vision: Any):
    from transformers import LlavaNextConfig

    return LlavaNextConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=words.convert_tokens_to_ids(IMAGE),
        image_grid_pinpoints=_pinpoints(vision.image_size),
        image_seq_length=(vision.image_size // vision.patch_size) ** 2,
        tie_word_embeddings=False,
        initializer_range=text.initializer_range,
    )


class LlavaNextAdapter(VisionAdapter):
    """LLaVA-NeXT over any language model; ordinary positions, no video."""

    types = ("llava_next",)
    configs = {"toy": small, "full": full}
    takes_video = False

    @staticmethod
    def toy_tokenizer() -> Any:
        words = toy.tokenizer([IMAGE])
        words.chat_template = toy.chat_template(f"{IMAGE}\n")
        return words

    @staticmethod
    def random_processor(config: Any, words: Any) -> Any:
        from transformers import LlavaNextImageProcessor, LlavaNextProcessor

        tile = config.vision_config.image_size
        pixels = LlavaNextImageProcessor(
            size={"shortest_edge": tile},
            crop_size={"height": tile, "width": tile},
            image_grid_pinpoints=config.image_grid_pinpoints,
        )
        return LlavaNextProcessor(
            image_processor=pixels,
            tokenizer=words,
            patch_size=config.vision_config.patch_size,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
            num_additional_image_tokens=1,  # CLIP's class token, which the strategy `default` drops again
            chat_template=words.chat_template,
        )

    def visual_grids(self, images: list) -> list[dict[str, Any]] | None:
        """The overview of a single picture, whose tokens come first; of several it is not known."""
        if len(images) != 1:
            return None
        config = self.model.config.vision_config
        side = config.image_size // config.patch_size
        return [{"rows": side, "columns": side, "width": 1.0, "height": 1.0}]

    def box_tokens(self, size: tuple[int, int], box: Box) -> list[int]:
        """The overview first; then the rows of the padded canvas that hold picture, a newline after each."""
        import torch
        from transformers.image_processing_utils import select_best_resolution
        from transformers.models.llava_next.modeling_llava_next import unpad_image

        width, height = size
        config = self.model.config
        patch, tile = config.vision_config.patch_size, config.vision_config.image_size
        per_side = tile // patch
        overview = covered(box, (0, 0, width, height), per_side, per_side)
        found = [row * per_side + column for row, column in overview]
        high, wide = select_best_resolution((height, width), config.image_grid_pinpoints)
        scale = min(wide / width, high / height)
        fitted = min(wide, math.ceil(width * scale)), min(high, math.ceil(height * scale))
        left, top = (wide - fitted[0]) // 2, (high - fitted[1]) // 2
        x, y = fitted[0] / width, fitted[1] / height
        on_canvas = (left + box[0] * x, top + box[1] * y, left + box[2] * x, top + box[3] * y)
        rows, columns = high // patch, wide // patch
        # The model cuts padding off its feature map; what is left says where each row and column went.
        places = torch.arange(rows * columns).view(1, rows, columns)
        left_over = unpad_image(places, (height, width))[0]
        line = left_over.shape[1] + 1  # with the newline
        place = {int(cell): r * line + c for r, row in enumerate(left_over) for c, cell in enumerate(row)}
        cells = [
            row * columns + column for row, column in covered(on_canvas, (0, 0, wide, high), rows, columns)
        ]
        return found + [per_side**2 + place[cell] for cell in cells if cell in place]


load = LlavaNextAdapter.load
