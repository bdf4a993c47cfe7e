"""Rewrite the printed blocks of the documentation: each stands behind the command that prints it.

    python scripts/printed.py README.md docs/*.md [--check]

A block is what lies between ``<!-- printed: COMMAND -->`` and ``<!-- end -->``. COMMAND is a shell line, run
in the project's folder with the project's own ``kvbench`` first on the path, over stores that earlier
commands filled. Fenced blocks keep their fence. ``--check`` writes nothing and exits 1 when a block differs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"(?P<head><!-- printed: (?P<command>[^\n]+?) -->\n)"
    r"(?P<fence>```\w*\n)?(?P<body>.*?)(?P<close>```\n)?<!-- end -->",
    re.DOTALL,
)


def printed(command: str) -> str:
    """What a command prints, at 120 columns. Raises SystemExit, naming it, when it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"`{command}` ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()) + "\n"


def rewritten(text: str) -> str:
    """``text`` with every block printed anew."""

    def block(match: re.Match[str]) -> str:
        body = printed(match["command"])
        if match["fence"]:
            return f"{match['head']}{match['fence']}{body}```\n<!-- end -->"
        return f"{match['head']}\n{body}\n<!-- end -->"

    return BLOCK.sub(block, text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Rewrite the printed blocks of the documentation.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a block differs")
    arguments = parser.parse_args()
    differing = []
    for path in arguments.files:
        before = path.read_text("utf-8")
        after = rewritten(before)
        if before != after:
            differing.append(path)
            if not arguments.check:
                path.write_text(after, "utf-8")
    for path in differing:
        print(f"{path} {'differs' if arguments.check else 'rewritten'}")
    return 1 if arguments.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
