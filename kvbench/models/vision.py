"""Vision-language models through their own transformers processor: what all families share.

A family is a subclass with its model types, its configs (`configs`: toy and full), the processor of those,
and where a picture's tokens stand (`box_tokens`). Checkpoints bring their own processor and chat template.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from kvbench.errors import Unanswerable, UserError, first_line
from kvbench.models import toy
from kvbench.models.base import Adapter, Inputs, resolve_device, resolve_dtype, stop_tokens
from kvbench.models.boxes import Box
from kvbench.models.checkpoint import check_chat, load_weights, read_config, read_tokenizer
from kvbench.models.content import Video
from kvbench.models.literal import Literal, spliced


class VisionAdapter(Adapter):
    """One user turn of text, pictures and clips."""

    types: ClassVar[tuple[str, ...]]  # config.model_type of the checkpoints it reads
    configs: ClassVar[dict[str, Callable[[Any], Any]]]  # size -> config, given the toy tokenizer
    takes_video: ClassVar[bool] = True

    def __init__(self, *args: Any, processor: Any, options: dict[str, Any], **kwargs: Any):
        """options: the model config, of which a family reads its pixel limits."""
        super().__init__(*args, **kwargs)
        self.processor, self.options = processor, options

    @staticmethod
    def toy_tokenizer() -> Any:
        """The byte tokenizer with this family's special tokens and picture placeholders."""
        raise NotImplementedError

    @staticmethod
    def random_processor(config: Any, words: Any) -> Any:
        """The processor of a model with random weights, fit for its config."""
        raise NotImplementedError

    def image_options(self, max_pixels: int | None = None) -> dict[str, Any]:
        """What the image processor is told besides the pictures; max_pixels where `pixels` is not None."""
        return {}

    def video_options(self, clips: list[Video]) -> dict[str, Any]:
        """What the video processor is told besides the frames: take all of them, at their true times."""
        from transformers.video_utils import VideoMetadata

        metadata = [
            VideoMetadata(
                total_num_frames=len(clip.frames),
                fps=clip.fps,
                duration=len(clip.frames) / clip.fps,
                frames_indices=list(range(len(clip.frames))),
            )
            for clip in clips
        ]
        return {"video_metadata": metadata, "do_sample_frames": False}

    def add_positions(self, inputs: Inputs) -> None:
        """Set position ids and next_position where they are not 0, 1, 2, ..., N."""

    @staticmethod
    def image_token(config: Any) -> int:
        """The id that stands for a part of a picture. Raises UserError for a config that names none."""
        for name in ("image_token_id", "image_token_index"):
            if (token := getattr(config, name, None)) is not None:
                return token
        raise UserError(f"a {config.model_type} checkpoint names no image token: it needs its own adapter.")

    def box_tokens(self, size: tuple[int, int], box: Box) -> list[int]:
        """Indices, among the visual tokens of one picture of `size` (width, height), of those that see a box.

        box in pixels of the picture. Ascending. Used to calibrate visual heads (SparseMM).
        """
        raise NotImplementedError

    def prompt(self, parts: list[Any], max_pixels: int | None = None) -> Inputs:
        """Chat template and processor; `parts` as of kvbench.models.content."""
        clips = [part for part in parts if isinstance(part, Video)]
        images = [part for part in parts if not isinstance(part, (str, Video))]
        if clips and not self.takes_video:
            raise UserError(
                f"model {self.name} reads no video: choose another model, or give frames as pictures."
            )
        extra: dict[str, Any] = {}
        if images:
            extra.update(images=images, images_kwargs=self.image_options(max_pixels))
        if clips:
            extra.update(videos=[clip.frames for clip in clips], videos_kwargs=self.video_options(clips))
        literal = Literal([p for p in parts if isinstance(p, str)], self.tokenizer, self.processor)
        content = [_content(literal.hide(part) if isinstance(part, str) else part) for part in parts]
        text = self.processor.apply_chat_template(
            self.messages(content), add_generation_prompt=True, tokenize=False
        )
        bos = self.tokenizer.bos_token
        special = not (bos and text.startswith(bos))  # some chat templates write it themselves
        try:
            batch = self.processor(text=[text], add_special_tokens=special, return_tensors="pt", **extra)
        except ValueError as error:  # such as sides of more than 200 to 1
            raise Unanswerable(
                f"model {self.name} cannot read the sample's pictures ({first_line(error)})"
            ) from error
        ids = batch.pop("input_ids")[0].tolist()
        if literal:
            (ids, origin), by_token = literal.reveal(ids), (1, len(ids))
            for key, value in batch.items():
                if getattr(value, "shape", None) == by_token:
                    batch[key] = spliced(value, origin)
        inputs = self.text_inputs(ids)
        for key, value in batch.items():
            if key != "attention_mask" and hasattr(value, "to"):
                value = value.to(self.device)
                inputs.tensors[key] = value.to(self.model.dtype) if value.is_floating_point() else value
        if images or clips:
            ids = inputs.tensors["input_ids"][0].cpu()
            config = self.model.config
            inputs.visual_mask = ids == self.image_token(config)
            video = getattr(config, "video_token_id", None)
            if video is not None:
                inputs.visual_mask |= ids == video
            self.add_positions(inputs)
        return inputs

    @classmethod
    def load(cls, cfg: dict[str, Any]) -> VisionAdapter:
        """The model of conf/model/*.yaml: `weights` is a hub id, a folder, or `random` (with `size`, `seed`).

        Raises UserError for a missing or unfit checkpoint, before its weights are loaded.
        """
        device, dtype = resolve_device(cfg), resolve_dtype(cfg)
        weights, revision, name = cfg.get("weights"), cfg.get("revision"), cfg["name"]
        if weights == "random":
            words = cls.toy_tokenizer()
            config = toy.choose(cls.configs, cfg.get("size"), name)(words)
            processor = cls.random_processor(config, words)
        else:
            config = read_config(name, weights, revision, cls.types)
        from transformers import AutoModelForImageTextToText, AutoProcessor

        if weights == "random":
            model = toy.randomly(AutoModelForImageTextToText, config, cfg, device, dtype)
        else:
            processor = read_tokenizer(AutoProcessor, weights, revision)
            check_chat(name, processor, cfg.get("system_prompt"), content=[_content("?")])
            attention = {"attn_implementation": cfg.get("attention")}
            model = load_weights(
                AutoModelForImageTextToText, config, weights, revision, dtype=dtype, **attention
            )
        return cls(
            name,
            model.to(device),
            processor.tokenizer,
            stop_ids=stop_tokens(model, processor.tokenizer),
            max_length=cfg.get("max_length"),
            system=cfg.get("system_prompt"),
            head_scores=cfg.get("head_scores"),
            interleave=bool(cfg.get("interleave")),
            processor=processor,
            options=cfg,
        )


def _content(part: Any) -> dict[str, Any]:
    """One entry of a chat message's content."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "video" if isinstance(part, Video) else "image"}
