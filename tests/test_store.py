"""The journal keeps what was written, whatever happens to the process or the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench import store
from kvbench.errors import UserError
from kvbench.store import journal
from kvbench.store.files import canonical, pretty, pretty_rows, write_atomic

ANSWER = {
    "cell": "c",
    "sample": "q",
    "index": 0,
    "text": "é\u2028\n",
    "tokens": [1],
    "stopped": "eos",
    "prompt_length": 9,
}
ANSWER |= {"kept": {"shape": [1, 1], "entries": 4}, "seconds": 0.1}


def answer(index: int, **changes: object) -> dict:
    return {**ANSWER, "index": index, **changes}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model" / "benchmark" / "journal.jsonl"


def write(path, *records):
    with store.Writer(path) as writer:
        writer.append(records)
    return path.read_bytes()


def test_records_come_back(path):
    write(path, answer(0), answer(1))
    write(path, answer(2))
    assert list(journal.read(path)) == [answer(0), answer(1), answer(2)]


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.text(),
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.lists(st.integers(-9, 9)),
        min_size=1,
    )
)
def test_any_record_survives_one_line(record):
    line = journal.seal(record)
    assert line.count(b"\n") == 1 and json.loads(line)
    assert journal.unseal(line[:-1]) == record
    assert line.startswith(canonical(record)[:-1].encode()), "one spelling"


def test_a_record_holds_no_nan():
    with pytest.raises(ValueError, match="JSON compliant"):
        journal.seal(answer(0, seconds=float("nan")))


FLAT = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=9), min_size=1, max_size=4)
OTHERS = st.dictionaries(st.text("bcd", min_size=1), st.text() | st.lists(st.integers()))


@settings(max_examples=60, deadline=None)
@given(st.lists(FLAT, max_size=4), OTHERS)
def test_many_rows_are_spelled_like_any_document(rows, others):
    document = {"answers": rows, **others}
    assert pretty_rows(document, "answers") == pretty(document)


def test_every_torn_tail_is_cut_off_and_nothing_else(path):
    whole = write(path, answer(0), answer(1))
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        assert list(journal.read(path)) == [answer(0)], "a reader ignores the tail"
        with store.Writer(path) as writer:
            assert writer.records == [answer(0)]
            assert bool(writer.notices) == (length > first)
            writer.append([answer(1)])
        assert path.read_bytes() == whole


def test_every_bit_flip_is_named_and_set_aside_and_no_other_record_is_lost(path):
    whole = write(path, answer(0), answer(1), answer(2))
    first = whole.index(b"\n") + 1
    second = whole.index(b"\n", first) + 1
    aside = path.with_name("journal.jsonl.damaged")
    for offset in range(first, second):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << (offset % 8)
        path.write_bytes(damaged)
        aside.unlink(missing_ok=True)
        # Without its newline the second record runs into the third; the flip may also make a newline.
        left = [answer(0)] if offset == second - 1 else [answer(0), answer(2)]
        sentences = []
        assert list(journal.read(path, sentences)) == left
        assert sentences and all("line 2" in s or "line 3" in s for s in sentences)
        with store.Writer(path) as writer:
            assert writer.records == left
            assert "damaged and moved to journal.jsonl.damaged" in writer.notices[0]
            writer.append([answer(1)])
        assert aside.read_bytes() in bytes(damaged), "nothing is thrown away"
        assert list(journal.read(path)) == [*left, answer(1)]
        assert not path.with_name("journal.jsonl.tmp").exists()


def test_the_disk_is_asked_at_most_once_an_interval(path, monkeypatch):
    calls = []
    clock = [100.0]
    monkeypatch.setattr(journal.os, "fsync", lambda handle: calls.append(handle))
    monkeypatch.setattr(journal.time, "monotonic", lambda: clock[0])
    with store.Writer(path, sync=5.0) as writer:
        calls.clear()
        for second in (0, 1, 4, 5, 9, 10, 11):
            clock[0] = 100.0 + second
            writer.append([answer(second)])
            assert journal.unseal(path.read_bytes().splitlines()[-1]), "the system has every record at once"
        assert len(calls) == 3
    assert len(calls) == 4, "and the end of the run is on the disk"


def test_one_writer_and_free_readers(path):
    write(path, answer(0))
    with store.Writer(path):
        assert list(journal.read(path)) == [answer(0)]
        with pytest.raises(UserError, match="another kvbench process is writing"), store.Writer(path):
            pass
    with store.Writer(path):
        pass


def test_the_lock_survives_a_dead_owner(path):
    program = f"""
        import os, signal
        from pathlib import Path
        from kvbench import store
        with store.Writer(Path({str(path)!r})) as writer:
            writer.append([{answer(0)!r}])
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)])
    assert done.returncode < 0
    with store.Writer(path) as writer:
        assert writer.records == [answer(0)]


def test_a_store_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="choose a writable folder"),
        store.Writer(tmp_path / "file" / "journal.jsonl"),
    ):
        pass
    with pytest.raises(UserError, match="choose a writable folder"):
        write_atomic(tmp_path / "file" / "x.json", "{}")


def test_a_full_disk_loses_no_earlier_record(path):
    whole = write(path, answer(0))
    with store.Writer(path) as writer:
        file = writer._file

        class Full:
            def write(self, data):
                file.write(bytes(data)[: len(data) // 2])
                raise OSError(28, "No space left on device")

            def __getattr__(self, name):
                return getattr(file, name)

        writer._file = Full()
        with pytest.raises(UserError, match="No space left"):
            writer.append([answer(1)])
    assert path.read_bytes() == whole


def test_atomic_write_replaces_or_keeps(tmp_path, monkeypatch):
    path = tmp_path / "a" / "x.json"
    write_atomic(path, "old")
    before = path.stat().st_mtime_ns
    write_atomic(path, "old")
    assert path.stat().st_mtime_ns == before

    def crash(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(UserError, match="Input/output error"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and os.listdir(path.parent) == ["x.json"]


def known(folder, *digests):
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    for digest in digests:
        (folder / "cells" / f"{digest}.json").write_text("{}")


def test_answers_end_errors_and_disagreeing_answers_are_refused(path):
    known(path.parent, "c")
    error = {"cell": "c", "sample": "q", "index": 0, "error": {"type": "E", "message": "m"}, "attempt": 1}
    write(path, error, {**error, "index": 1}, answer(0), answer(0, seconds=9.0))
    responses = store.load_folder(path.parent)
    assert set(responses.failed("c")) == {1} and set(responses.answers["c"]) == {0}
    write(path.with_name("journal-1of2.jsonl"), answer(0, text="other"))
    with pytest.raises(UserError, match=r"contradict.*cell c sample 0 \(q\) in journal.jsonl"):
        store.load_folder(path.parent)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=30), st.randoms())
def test_a_merge_does_not_depend_on_shards_or_their_order(answers, dice):
    """Answers spread over journals anyhow, duplicates included, merge into the same result."""
    with tempfile.TemporaryDirectory() as name:
        merged = []
        for split in (1, 3):
            folder = Path(name) / str(split)
            known(folder, "c")
            dice.shuffle(answers)
            for shard in range(split):
                mine = [index for index, place in answers if place % split == shard]
                run = {"versions": {}, "command": [str(dice.random())], "started": str(dice.random())}
                records = [store.run_record(run)] + [answer(i, seconds=dice.random()) for i in mine]
                with store.Writer(store.journal_path(folder, shard, split)) as writer:
                    writer.append(records)
            cell = store.Cell("c", "m", "b", "fullkv", None, 0, "default", {}, folder)
            responses = store.load_folder(folder)
            assert set(responses.answers["c"]) == {index for index, _ in answers}
            store.write_results([cell], folder)
            merged.append((folder / "results" / "c.json").read_bytes())
        assert merged[0] == merged[1]


def test_temporary_files_of_killed_writers_are_removed(path):
    cell = store.Cell("c", "m", "b", "fullkv", None, 0, "default", {}, path.parent)
    for part in ("cells", "results", "provenance"):
        (path.parent / part).mkdir(parents=True)
        (path.parent / part / "c.json.abcd.tmp").write_text("half")
    store.write_cells([cell], path.parent)
    store.write_results([cell], path.parent)
    assert not list(path.parent.rglob("*.tmp"))


def test_a_newer_store_and_a_strange_journal_are_refused(path):
    known(path.parent, "c")
    write(path, answer(0), answer(1, cell="d"))
    with pytest.raises(UserError, match="answers of a cell without a file cells/d.json"):
        store.load_folder(path.parent)
    write(path.with_name("journal-0of2.jsonl"), {"run": {}, "session": "x", "format": 3})
    with pytest.raises(UserError, match="written by a newer kvbench"):
        store.load_folder(path.parent)


def test_a_journal_without_sessions_is_still_read(path):
    known(path.parent, "c")
    write(path, {"run": {"device": "cpu", "command": ["x"], "started": "then"}}, answer(0))
    responses = store.load_folder(path.parent)
    assert not responses.orphans("c")
    assert responses.environment("c")[0]["device"] == "cpu"


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda heads: st.lists(
            st.lists(st.integers(0, 3), min_size=heads, max_size=heads), min_size=1, max_size=5
        )
    )
)
def test_kept_entries_pack_and_unpack(kept):
    assert store.unpack_kept(store.pack_kept(kept)) == kept


def test_uniform_kept_entries_are_one_number():
    assert store.pack_kept([[64, 64]] * 30) == {"shape": [30, 2], "entries": 64}


def test_a_broken_cell_config_names_its_file(tmp_path):
    path = tmp_path / "m" / "b" / "cells" / "0123.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(UserError, match="0123.json is not a cell config"):
        store.cells(tmp_path)
