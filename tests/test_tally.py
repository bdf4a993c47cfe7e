"""Counts for `kvbench status` come from a part of each line and equal those of the whole records."""

from __future__ import annotations

import random

import pytest
from test_store import answer

from kvbench import store
from kvbench.errors import UserError
from kvbench.store import journal, tally

ODD = ("a", 'quote " , end,', ',"seconds":9.5,', '{"cell":"d","index":7,', "back\\", "é\n")


def counted(path) -> dict[str, dict[int, int]]:
    """Answered (1) and failed (2) samples by cell, from the records themselves."""
    states: dict[str, dict[int, int]] = {}
    for record in journal.read(path):
        if "cell" in record:
            known = states.setdefault(record["cell"], {})
            known[record["index"]] = min(known.get(record["index"], 9), 2 if "error" in record else 1)
    return states


@pytest.fixture
def filled(tmp_path):
    """A journal of two cells with odd names and texts, failures and a damaged line; the whole of it."""
    path = tmp_path / "journal.jsonl"
    dice = random.Random(3)
    with store.Writer(path) as writer:
        writer.append([{"limit": None, "size": 40}, store.run_record({"device": "cpu"})])
        for index in range(40):
            odd = {"sample": dice.choice(ODD), "text": dice.choice(ODD), "seconds": 2.0**-index}
            odd["kept"] = {"shape": [2, 1], "entries": [[3], [5]]}
            if index % 7 == 3:
                error = {
                    "index": index,
                    "sample": odd["sample"],
                    "error": {"type": "E", "message": odd["text"]},
                }
                writer.append([{"cell": "c", "attempt": 1, **error}])
            if index % 7 != 3 or index > 20:
                writer.append(answer(index, cell=cell, **odd) for cell in ("c", "d"))
        late = {"index": 0, "sample": "q", "error": {"type": "E", "message": "after the answer"}}
        writer.append([{"cell": "c", "attempt": 2, **late}])
    whole = path.read_bytes().splitlines(keepends=True)
    whole[9] = whole[9].replace(b'"eos"', b'"EOS"')
    path.write_bytes(b"".join(whole))
    return path


def cell(digest: str, folder) -> store.Cell:
    return store.Cell(digest, "m", "b", "fullkv", None, 0, "default", {}, folder)


def test_a_tally_counts_what_the_records_say(filled):
    expected = counted(filled)
    found = tally.Tally(filled.parent, [cell(digest, filled.parent) for digest in "cd"])
    found.update()
    for one in found.cells:
        states = list(expected[one.digest].values())
        assert (found.done(one), found.failed(one)) == (states.count(1), states.count(2))
    (shard,) = found.shards.values()
    answers = [record for record in journal.read(filled) if "text" in record]
    assert (shard.damaged, shard.answers, found.size) == (1, len(answers), 2 * 40)
    # The cells of a pass share its seconds.
    assert shard.seconds == pytest.approx(sum({r["index"]: r["seconds"] for r in answers}.values()))


def test_a_tally_that_looks_again_reads_what_is_new(filled):
    whole = filled.read_bytes()
    again = tally.Tally(filled.parent, [cell("c", filled.parent)])
    for length in (0, 100, len(whole) // 3, len(whole) - 5, len(whole)):
        filled.write_bytes(whole[:length])
        again.update()
    once = tally.Tally(filled.parent, again.cells)
    once.update()
    assert again.states == once.states and again.size == once.size
    assert next(iter(again.shards.values())).damaged == 1


def test_a_newer_journal_is_refused(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(journal.seal({"run": {}, "session": "x", "format": journal.FORMAT + 1}))
    with pytest.raises(UserError, match="written by a newer kvbench"):
        tally.Tally(tmp_path, []).update()
