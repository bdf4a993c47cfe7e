"""The circumstances of answers: versions, revision, device, command.  No host names, no absolute paths."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kvbench.support import masking

PACKAGES = ("kvbench", "torch", "transformers", "lmms_eval")
WHERE_INSTALLED = ("flash_attn",)  # named only there: it rounds 16-bit sums in its own order


def collect(command: list[str], seed: int, device: str, dtype: str) -> dict[str, Any]:
    """The circumstances of a session.  ``started`` is the only part that is a time."""
    return {
        "versions": versions(),
        "git": git_state(Path(__file__).resolve().parent),
        "device": device,
        "dtype": dtype,
        "seed": seed,
        "command": [_portable(word) for word in masking.command(command)],
        "host": host(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def versions() -> dict[str, str | None]:
    """Releases of Python and of the packages that answers and times depend on."""
    found = {name: _version(name) for name in PACKAGES}
    found |= {name: version for name in WHERE_INSTALLED if (version := _version(name)) is not None}
    return {"python": platform.python_version(), **found}


def host() -> str:
    """A name for this machine that says nothing about it, to count machines by."""
    try:
        random = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        random = platform.node()
    return hashlib.sha256(f"kvbench {random}".encode()).hexdigest()[:8]


def _portable(word: str) -> str:
    """A word of a command with absolute paths cut down to their last part, as in ``store=.../table1``."""
    return re.sub(r"(?<![\w.~-])/(?:[^\s/,=\[\]'\"]+/)*(?=[^\s/,=\[\]'\"])", ".../", word)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Revision of the checkout and whether tracked files differ from it; None outside a checkout.

    ``methods``: the files of kvbench/methods that the revision does not hold as they are, each with the
    letters of `git status` (?? untracked, M modified), where there are any.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout.strip()

    try:
        found = {
            "revision": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
        here = ("--", str(folder / "methods"))
        changed = git("status", "--porcelain", "--untracked-files=all", *here).splitlines()
        names = sorted(" ".join(line.split()) for line in changed if line.endswith(".py"))
        return {**found, "methods": names} if names else found
    except (OSError, subprocess.SubprocessError):
        return None
