"""The journal keeps what was written, whatever happens to the process or the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench import store
from kvbench.errors import UserError
from kvbench.store import journal
from kvbench.store.files import write_atomic

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
    st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.integers()), min_size=1)
)
def test_any_record_survives_one_line(record):
    line = journal.seal(record)
    assert line.count(b"\n") == 1 and json.loads(line)
    assert journal.unseal(line[:-1]) == record


def test_every_torn_tail_is_cut_off_and_nothing_else(path):
    whole = write(path, answer(0), answer(1))
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        assert list(journal.read(path)) == [answer(0)], "a reader ignores the tail"
        with store.Writer(path) as writer:
            assert writer.records == [answer(0)]
            assert bool(writer.notice) == (length > first)
            writer.append([answer(1)])
        assert path.read_bytes() == whole


def test_every_bit_flip_is_noticed(path):
    whole = write(path, answer(0), answer(1))
    second = whole.index(b"\n") + 1
    for offset in range(second - 1):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << (offset % 8)
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"journal\.jsonl, line 1 is damaged"):
            list(journal.read(path))
        with pytest.raises(UserError, match="line 1"), store.Writer(path):
            pass
        assert path.read_bytes() == damaged, "a damaged journal is left as it is"


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


def test_answers_end_errors_and_disagreeing_answers_are_refused(path):
    error = {"cell": "c", "sample": "q", "index": 0, "error": {"type": "E", "message": "m"}, "attempt": 1}
    write(path, error, {**error, "index": 1}, answer(0), answer(0, seconds=9.0))
    responses = store.load_folder(path.parent)
    assert set(responses.failed("c")) == {1} and set(responses.answers["c"]) == {0}
    write(path.with_name("journal-1of2.jsonl"), answer(0, text="other"))
    with pytest.raises(UserError, match="journal.*two different answers of cell c to sample 0"):
        store.load_folder(path.parent)


@pytest.mark.parametrize("sizes, limit, expected", [
    ({6: 6}, 6, 6), ({6: 6}, 4, 4), ({6: 6}, 7, None), ({6: 6}, None, None), ({}, 3, None),
    ({20: 12}, 6, 6), ({20: 12}, 15, 12), ({20: 12}, None, 12), ({None: 12}, 3, 3),
    ({None: 12, 3: 3}, 99, 12),
])  # fmt: skip
def test_expected_samples(sizes, limit, expected):
    assert store.Responses(sizes=sizes).expected(limit) == expected


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
