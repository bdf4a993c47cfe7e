"""The eyes: a small convolutional network that reads each tile of a page on its own.

Its hidden state is the probability of every class of the page vocabulary. LLaVA's stock projector, whose
first layer holds the frozen embeddings of these classes, turns it into the mixture of the embeddings: a tile
that is read with confidence enters the language model as the token drawn on it.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutputWithPooling

from kvbench.embedded import vocabulary as V
from kvbench.embedded.draw import TILE_HEIGHT, TILE_WIDTH

MODEL_TYPE = "kvbench_tiles"


class TileConfig(PretrainedConfig):
    """Configuration of the tower; ``hidden_size``, which the projector reads, is the vocabulary's size."""

    model_type = MODEL_TYPE
    hidden_size: int = V.SIZE
    width: int = 32
    num_hidden_layers: int = 1


class TileTower(PreTrainedModel):
    """``pixel_values`` [1, T, 3, TILE_HEIGHT, TILE_WIDTH] in [-1, 1] -> probabilities [1, T, V.SIZE]."""

    config: TileConfig
    config_class = TileConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)

    def __init__(self, config: TileConfig):
        super().__init__(config)
        w = config.width

        def stage(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
            return [
                nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]

        self.stem = nn.Sequential(
            *stage(1, w // 2),
            *stage(w // 2, w, 2),  # 12 x 24
            *stage(w, w),
            *stage(w, 2 * w, 2),  # 6 x 12
            *stage(2 * w, 2 * w),
            *stage(2 * w, 3 * w, 2),  # 3 x 6
        )
        self.neck = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * w * 3 * 6, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()
        )
        self.head = nn.Linear(256, config.hidden_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def logits(self, tiles: Tensor) -> Tensor:
        """Tiles [T, 3, h, w] in [-1, 1] -> class logits [T, V.SIZE]; in grey, each at its own contrast."""
        grey = tiles.mean(dim=1, keepdim=True)
        mean = grey.mean(dim=(2, 3), keepdim=True)
        spread = (grey - mean).pow(2).mean(dim=(2, 3), keepdim=True).sqrt()
        # The floor keeps paper grain from being blown up to the size of ink.
        return self.head(self.neck(self.stem((grey - mean) / (spread + 0.05))))

    def forward(self, pixel_values: Tensor, **_: object) -> BaseModelOutputWithPooling:
        batch, tiles = pixel_values.shape[:2]
        flat = pixel_values.flatten(0, 1).to(self.dtype)
        probabilities = self.logits(flat).float().softmax(-1).view(batch, tiles, -1).to(self.dtype)
        return BaseModelOutputWithPooling(last_hidden_state=probabilities, hidden_states=(probabilities,))


def register() -> None:
    """Make the tower known to transformers' Auto classes; call it before a LLaVA config is built."""
    AutoConfig.register(MODEL_TYPE, TileConfig, exist_ok=True)
    AutoModel.register(TileConfig, TileTower, exist_ok=True)


def cut(image: Image.Image) -> Tensor:
    """An image as tiles in reading order: [rows * columns, 3, TILE_HEIGHT, TILE_WIDTH] in [-1, 1].

    An image whose sides are no multiple of a tile is padded with its border's pixels at the right and the
    bottom.
    """
    pixels = np.asarray(image.convert("RGB"))
    down, right = -pixels.shape[0] % TILE_HEIGHT, -pixels.shape[1] % TILE_WIDTH
    if down or right:
        pixels = np.pad(pixels, ((0, down), (0, right), (0, 0)), mode="edge")
    rows, columns = pixels.shape[0] // TILE_HEIGHT, pixels.shape[1] // TILE_WIDTH
    tiles = pixels.reshape(rows, TILE_HEIGHT, columns, TILE_WIDTH, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(np.ascontiguousarray(tiles)).flatten(0, 1).float() / 127.5 - 1
