"""What the Qwen-VL families share: pixels at native resolution, and M-RoPE positions.

Positions of an image take less room than its tokens, so the first generated token stands *before* position
N. Its position is read off the prompt's own position ids and passed explicitly at every step.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from kvbench.models import toy
from kvbench.models.base import Inputs
from kvbench.models.boxes import Box, covered
from kvbench.models.content import Video
from kvbench.models.vision import VisionAdapter

SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PICTURE, MOVIE = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"


class MRopeAdapter(VisionAdapter):
    """A model of the Qwen-VL line."""

    processor_name: ClassVar[str]  # the transformers class, and those of its two parts
    video_processor_name: ClassVar[str]

    @staticmethod
    def toy_tokenizer() -> Any:
        words = toy.tokenizer(SPECIAL)
        words.chat_template = toy.chat_template(PICTURE, MOVIE)
        return words

    @classmethod
    def random_processor(cls, config: Any, words: Any) -> Any:
        import transformers

        vision = config.vision_config
        pixels = {
            "patch_size": vision.patch_size,
            "merge_size": vision.spatial_merge_size,
            "size": {"shortest_edge": 4 * side(vision) ** 2, "longest_edge": 16384 * side(vision) ** 2},
        }
        return getattr(transformers, cls.processor_name)(
            image_processor=transformers.Qwen2VLImageProcessor(**pixels),
            video_processor=getattr(transformers, cls.video_processor_name)(**pixels),
            tokenizer=words,
            chat_template=words.chat_template,
        )

    def image_options(self, max_pixels: int | None = None) -> dict[str, Any]:
        options = self._limits(self.processor.image_processor, "min_pixels", "max_pixels")
        if max_pixels is not None:
            options["size"]["longest_edge"] = max_pixels
        return options

    @property
    def pixels(self) -> tuple[int, int, int]:
        size = self.image_options()["size"]
        return side(self.model.config.vision_config) ** 2, size["shortest_edge"], size["longest_edge"]

    def video_options(self, clips: list[Video]) -> dict[str, Any]:
        # The cap on a clip's pixels is that of the authors' own preprocessing (qwen-vl-utils).
        limits = self._limits(self.processor.video_processor, "video_min_pixels", "video_max_pixels")
        return {**super().video_options(clips), **limits, "cap_pixels_per_frame": True}

    def _limits(self, part: Any, least: str, most: str) -> dict[str, Any]:
        """The processor's limits on pixels, replaced by those that the model config sets."""
        low, high = self.options.get(least), self.options.get(most)
        size = {"shortest_edge": part.size["shortest_edge"], "longest_edge": part.size["longest_edge"]}
        if low is not None:
            size["shortest_edge"] = low
        if high is not None:
            size["longest_edge"] = high
        return {"size": size}

    def add_positions(self, inputs: Inputs) -> None:
        tensors = inputs.tensors
        known = ("mm_token_type_ids", "image_grid_thw", "video_grid_thw", "second_per_grid_ts")
        grids = {key: tensors[key] for key in known if key in tensors}
        positions, _ = self.model.model.get_rope_index(tensors["input_ids"], **grids)
        inputs.next_position = int(positions.max()) + 1
        tensors["position_ids"] = positions

    def decode_positions(self, positions: Tensor) -> Tensor:
        """[B] -> [3, B, 1]: a generated token has the same temporal, height and width position."""
        return positions.view(1, -1, 1).expand(3, -1, -1)

    def _grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of a picture: a token a square of merged patches, stretched to whole ones."""
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        width, height = size
        square, limits = side(self.model.config.vision_config), self.image_options()["size"]
        high, wide = smart_resize(height, width, square, limits["shortest_edge"], limits["longest_edge"])
        return high // square, wide // square

    def visual_grids(self, images: list) -> list[dict[str, Any]] | None:
        """Of pictures; of clips it is not known."""
        if any(isinstance(image, Video) for image in images):
            return None
        grids = map(self._grid, (image.size for image in images))
        return [{"rows": rows, "columns": columns, "width": 1.0, "height": 1.0} for rows, columns in grids]

    def box_tokens(self, size: tuple[int, int], box: Box) -> list[int]:
        rows, columns = self._grid(size)
        cells = covered(box, (0, 0, *size), rows, columns)
        return [row * columns + column for row, column in cells]


def side(vision: Any) -> int:
    """Pixels along the side of one language-model token."""
    return vision.patch_size * vision.spatial_merge_size


def token_ids(words: Any) -> dict[str, int]:
    """Where a config finds the special tokens."""
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return dict(zip(names, words.convert_tokens_to_ids(list(SPECIAL)), strict=True))
