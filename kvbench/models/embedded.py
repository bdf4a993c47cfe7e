"""Adapter of the embedded vision-language model: page tiles, one prompt format, 1-D positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kvbench.embedded import load as embedded
from kvbench.embedded import prompt, tower
from kvbench.errors import Unanswerable, UserError
from kvbench.models.base import Adapter, Inputs, resolve_device, resolve_dtype, stop_tokens
from kvbench.models.boxes import covered
from kvbench.models.content import Video

SHIPPED = "shipped"


class EmbeddedAdapter(Adapter):
    """One user turn: the tiles of the images, then the text."""

    def prepare(self, text: str, images: list) -> Inputs:
        """One placeholder token a tile of TILE_WIDTH x TILE_HEIGHT pixels, images one after another."""
        if any(isinstance(image, Video) for image in images):
            raise UserError(f"model {self.name} reads no video: choose another model.")
        tiles = [tower.cut(image) for image in images]
        count = sum(len(part) for part in tiles)
        before = prompt.opening(self.tokenizer, self.system)
        after = prompt.closing(self.tokenizer, text, after_image=bool(images))
        placeholder = prompt.special(self.tokenizer, prompt.IMAGE)
        ids = [*before, *[placeholder] * count, *after]
        if len(ids) > self.max_length:
            raise Unanswerable(
                f"the prompt has {len(ids)} tokens ({count} image tiles), "
                f"model {self.name} takes {self.max_length}: "
                f"scale the image down (a tile is {tower.TILE_WIDTH} x {tower.TILE_HEIGHT} pixels)."
            )
        inputs = self.text_inputs(ids)
        inputs.visual_mask[len(before) : len(before) + count] = True
        if tiles:
            inputs.tensors["pixel_values"] = torch.cat(tiles)[None].to(self.device, self.model.dtype)
        return inputs

    def visual_grids(self, images: list) -> list[dict[str, Any]]:
        """Tiles; the last column and row may stand over the edge."""
        grids = []
        for image in images:
            columns, rows = -(-image.width // tower.TILE_WIDTH), -(-image.height // tower.TILE_HEIGHT)
            width, height = columns * tower.TILE_WIDTH / image.width, rows * tower.TILE_HEIGHT / image.height
            grids.append({"rows": rows, "columns": columns, "width": width, "height": height})
        return grids

    def box_tokens(self, size: tuple[int, int], box: tuple[float, float, float, float]) -> list[int]:
        """Tiles that a box (left, top, right, bottom in pixels) touches, in a picture of `size`."""
        columns, rows = -(-size[0] // tower.TILE_WIDTH), -(-size[1] // tower.TILE_HEIGHT)
        frame = (0, 0, columns * tower.TILE_WIDTH, rows * tower.TILE_HEIGHT)
        return [row * columns + column for row, column in covered(box, frame, rows, columns)]


def load(cfg: dict[str, Any]) -> EmbeddedAdapter:
    """The shipped model, or the one in `weights` (a folder that `make embedded` wrote).

    Raises:
        UserError: weights or language model are missing.
    """
    device = resolve_device(cfg)
    chosen = cfg.get("weights") or SHIPPED
    folder = None if chosen == SHIPPED else Path(chosen).expanduser()
    model, words = embedded.load(folder)
    scores = cfg.get("head_scores")
    if scores == SHIPPED:
        shipped = embedded.WEIGHTS / "head_scores.json"
        scores = shipped if shipped.exists() else None  # without the file, sparsemm says how to make it
    return EmbeddedAdapter(
        cfg["name"],
        model.to(device, resolve_dtype(cfg)),
        words,
        stop_ids=stop_tokens(model, words),
        max_length=cfg.get("max_length"),
        system=cfg.get("system_prompt"),
        head_scores=scores,
    )
