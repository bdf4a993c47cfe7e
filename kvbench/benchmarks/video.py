"""Videos as clips: evenly spaced frames, read with PyAV."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvbench.errors import FileGone, UserError

SUFFIXES = (".mp4", ".MP4", ".mkv", ".webm")


def folder(cfg: Mapping[str, Any]) -> Path:
    """Where a benchmark's videos lie: ``videos``, a folder that exists beside micro data, or $HF_HOME."""
    if cfg.get("videos"):
        return Path(str(cfg["videos"])).expanduser()
    if cfg.get("data") == "micro":
        from kvbench.benchmarks import micro

        return micro.folder(str(cfg["name"])) / "videos"
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / str(cfg["video_folder"])


def find(cfg: Mapping[str, Any], name: str) -> Path:
    """The file of one video. Raises FileGone when it is missing."""
    root = folder(cfg)
    for suffix in SUFFIXES:
        if (root / f"{name}{suffix}").is_file():
            return root / f"{name}{suffix}"
    raise FileGone(
        f"benchmark {cfg['name']} finds no video {name} in {root}: run `kvbench fetch"
        f" benchmark={cfg['name']}` or set benchmark.videos=FOLDER.",
        str(root / name),
    )


def clip(path: Path, count: int) -> Any:
    """A ``Clip`` of at most ``count`` RGB frames at the middles of equal parts of the video.

    Raises UserError when there is no reader or the file cannot be read.
    """
    from kvbench.models.content import Video

    try:
        import av
    except ImportError as error:
        raise UserError('videos need PyAV: pip install "av<16".') from error
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            total = stream.frames or sum(1 for _ in container.decode(stream))
            container.seek(0)
            count = min(count, total)
            wanted = {int((step + 0.5) * total / count) for step in range(count)}
            frames = [
                frame.to_image() for index, frame in enumerate(container.decode(stream)) if index in wanted
            ]
            rate = float(stream.average_rate or 1)
    except FileNotFoundError as error:
        raise FileGone(f"the video {path} is not there any more: fetch it again.", str(path)) from error
    except (av.FFmpegError, OSError, IndexError, ZeroDivisionError) as error:
        raise UserError(
            f"the video {path} cannot be read ({type(error).__name__}): fetch it again or delete it."
        ) from error
    if not frames:
        raise UserError(f"the video {path} holds no frame: fetch it again.")
    return Video(frames=frames, fps=len(frames) * rate / total)
