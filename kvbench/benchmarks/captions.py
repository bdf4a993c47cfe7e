"""CIDEr for many cells with one start of Java; the figure is lmms-eval's own, to the last digit, unless
a caption holds a line end: that shifts pycocoevalcap's own output.

lmms-eval's caption tasks start the Java PTB tokenizer twice per metric and cell. Here every distinct
block of captions (the references once, each cell's candidates) is tokenised in one call, then
``kvbench.benchmarks.cider`` computes CIDEr. Document frequencies come from the references of the
scored samples alone, so they are the same for every cell and stay frozen when per-image values are
resampled.

One subtlety: the tokenizer looks past the end of a line. ``Acme Inc.`` keeps its full stop before a line
that starts in lower case (or the end of the file) and loses it before a capital. So the captions of a
block stay adjacent and in lmms-eval's order, and blocks are set apart by a word in lower case.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kvbench.benchmarks.cider import References
from kvbench.errors import UserError

_PROGRAM = ("edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase")
_FENCE = "kvbenchfence"
# Java's tokenizer ends a line at each of these; inside a caption they would shift all that follow.
_LINE_ENDS = re.compile("[\n\r\x0b\x0c\x85\u2028\u2029]")


def java() -> str | None:
    """Path of the ``java`` program, or None."""
    return shutil.which("java")


def tokenize(blocks: Sequence[Sequence[str]]) -> list[list[str]]:
    """Tokens of each caption joined by blanks, punctuation dropped: one Java call for all blocks.

    Raises UserError when there is no Java or it fails.
    """
    from pycocoevalcap.tokenizer import ptbtokenizer

    program = java()
    if program is None:
        raise UserError(
            "caption metrics need Java, which is not on PATH: install a Java runtime, then score again."
        )
    lines: list[str] = []
    for block in blocks:
        lines.extend(_LINE_ENDS.sub(" ", caption) for caption in block)
        lines.append(_FENCE)
    jar = Path(ptbtokenizer.__file__).parent / ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "captions.txt"
        source.write_text("\n".join(lines), encoding="utf-8")
        done = subprocess.run(
            [program, "-Dfile.encoding=UTF-8", "-cp", str(jar), *_PROGRAM, str(source)],
            capture_output=True,
            check=False,
        )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise UserError(
            f"Java's PTB tokenizer failed ({reason[0]}): check `java -version`, then score again."
        )
    out = done.stdout.decode("utf-8").split("\n")
    if out and out[-1] == "":
        out.pop()
    if len(out) != len(lines):
        raise UserError(f"Java's PTB tokenizer gave {len(out)} lines for {len(lines)} captions: report this.")
    drop = set(ptbtokenizer.PUNCTUATIONS)
    cleaned = [" ".join(word for word in line.rstrip().split(" ") if word not in drop) for line in out]
    result, start = [], 0
    for block in blocks:
        result.append(cleaned[start : start + len(block)])
        start += len(block) + 1
    return result


def cider(references: Sequence[Sequence[str]], cells: Sequence[Sequence[str]]) -> list[list[float]]:
    """Per-image CIDEr of every cell.

    references: per image, its reference captions. cells: per cell, one candidate per image.
    The mean of a cell's values is its corpus CIDEr. Raises UserError as ``tokenize`` does.
    """
    flat = [caption for captions in references for caption in captions]
    tokens, *candidates = tokenize([flat, *cells])
    truths, start = [], 0
    for captions in references:
        truths.append(tokens[start : start + len(captions)])
        start += len(captions)
    known = References(truths)
    return [known.scores(cell) for cell in candidates]
