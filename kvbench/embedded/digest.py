"""Digests of what set-up put into the cache, by content: how a library packs it does not count."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvbench.store.files import canonical

FILE = "digest.json"
_PACKING = ("transformers_version", "_name_or_path")  # in configs: who wrote them, not what they say


def of_model(folder: Path) -> str:
    """Ten hex digits for the tensors, configs, tokenizer and chat template of a checkpoint's folder."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            said = _tensors(path)
        elif path.suffix == ".json" and path.name != FILE:
            document = json.loads(path.read_text("utf-8"))
            said = canonical({key: value for key, value in document.items() if key not in _PACKING}).encode()
        elif path.suffix in (".jinja", ".txt", ".model"):
            said = path.read_bytes()
        else:
            continue
        total.update(f"{path.name} {hashlib.sha256(said).hexdigest()}\n".encode())
    return total.hexdigest()[:10]


def _tensors(path: Path) -> bytes:
    """Name, type, shape and digest of each tensor of a safetensors file, in the order of names."""
    lines = []
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > path.stat().st_size:
            raise ValueError(f"{path.name} is no safetensors file")
        header = json.loads(file.read(size))
        for name in sorted(header.keys() - {"__metadata__"}):
            begin, end = header[name]["data_offsets"]
            file.seek(8 + size + begin)
            values = hashlib.sha256(file.read(end - begin)).hexdigest()
            lines.append(f"{name} {header[name]['dtype']} {header[name]['shape']} {values}")
    return "\n".join(lines).encode()


def of_rows(files: Iterable[Path]) -> str:
    """Ten hex digits for the rows of Parquet files, pictures by their pixels."""
    import pyarrow.parquet

    pictures = functools.cache(_pixels)
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path.parent.name}/{path.name}\n".encode())
        for row in pyarrow.parquet.read_table(path).to_pylist():
            total.update(canonical(_plain(row, pictures)).encode() + b"\n")
    return total.hexdigest()[:10]


def _plain(value: Any, pictures: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part, pictures) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part, pictures) for part in value]
    return pictures(value) if isinstance(value, bytes) else value


def _pixels(data: bytes) -> str:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        return f"{picture.mode} {picture.size} {hashlib.sha256(picture.tobytes()).hexdigest()}"
