"""Files that are either the old version or the new one, and JSON with one spelling."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from kvbench.errors import UserError

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode

_encode_rows = json.JSONEncoder(
    sort_keys=True, separators=(",\n   ", ": "), ensure_ascii=False, allow_nan=False
).encode


def canonical(value: Any) -> str:
    """JSON with one spelling: sorted keys, no spaces, UTF-8 as it is.  NaN is refused: JSON has none."""
    return _encode(value)


def pretty(value: Any) -> str:
    """The same for files people open: sorted keys, indented, final newline."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def pretty_rows(document: dict[str, Any], key: str) -> str:
    """``pretty(document)``, fast where ``key``, the first of its keys, holds many flat objects.

    Python's encoder is slow with an indent; with the line breaks as separators the fast one gives the same.
    """
    text = pretty({**document, key: []})
    if not document[key]:
        return text
    rows = _encode_rows(document[key])[2:-2].replace("},\n   {", "\n  },\n  {\n   ")
    return text.replace(f'"{key}": []', f'"{key}": [\n  {{\n   {rows}\n  }}\n ]', 1)


def storage_error(path: Path, error: OSError, choose: str = "store=DIR") -> UserError:
    """The sentence for a disk that refuses: ``path`` is what we tried to write, ``choose`` another place."""
    reason = error.strerror or str(error)
    return UserError(
        f"cannot write {path} ({reason}): choose a writable folder with free space, {choose}; "
        "nothing recorded so far is lost."
    )


def write_atomic(path: Path, text: str | bytes, choose: str = "store=DIR") -> None:
    """Replace ``path`` by ``text`` whole: temporary file beside it, fsync, rename.

    An unchanged file is left alone, so a second call of a finished command writes nothing.  Raises UserError
    where it cannot be written, with ``choose`` for another place.
    """
    data = text if isinstance(text, bytes) else text.encode("utf-8")
    try:
        if path.exists() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=path.name + ".", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error(path, error, choose) from error


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    # The only portable way to read the umask is to set it; mkstemp makes files private, results are not.
    mask = os.umask(0)
    os.umask(mask)
    return mask
