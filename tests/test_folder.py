"""A folder of your own: rows checked by line, asked, scored by each metric, and from the store alone."""

from __future__ import annotations

import json
import shutil

import pytest
from PIL import Image

from kvbench import benchmarks
from kvbench.cli import main
from kvbench.errors import UserError
from kvbench.paths import conf_dir
from kvbench.planning import compose

ROWS = [
    {"question": "Who?", "answers": ["Ann", "Anna"], "image": "a.png", "id": "x"},
    {"question": "How much?", "answer": "100", "images": ["a.png", "b.png"]},
    {"question": "Where?", "answer": "in the house", "group": "g"},
]


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "my-pages"
    root.mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (60, 40), "white").save(root / name)

    def write(rows=ROWS, name="rows.jsonl"):
        text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
        (root / name).write_text(text)
        return root

    return write


def load(root, metric="anls"):
    with compose.session():
        words = ["benchmark=folder", f"benchmark.data={root}", f"benchmark.metric={metric}"]
        return benchmarks.load(compose.plain(compose.compose(words), resolve=True)["benchmark"])


def test_rows_are_asked_with_their_pictures(folder):
    benchmark = load(folder())
    samples = benchmark.samples()
    assert [sample.text for sample in samples] == ["Who?", "How much?", "Where?"]
    assert [len(sample.images()) for sample in samples] == [1, 2, 0]
    assert [sample.id for sample in samples] == ["x", "2", "3"] and benchmark.name == "my-pages"
    assert benchmark.clusters(range(3)) == {0: "a.png", 1: "a.png", 2: "g"}


@pytest.mark.parametrize(("metric", "answers", "values"), [
    ("anls", ["anna", "104", "in  THE hose"], [1, 2 / 3, 11 / 12]),
    ("anls", ["nobody", "9", "in the house"], [0, 0, 1]),
    ("exact", ["Ann.", "104", "in the house"], [1, 0, 1]),
    ("relaxed", ["Ann", "104", "elsewhere"], [1, 1, 0]),
    ("relaxed", ["Ann", "106", "in the house"], [1, 0, 1]),
    ("rougeL", ["Ann", "100", "the house"], [1, 1, 0.8]),
])  # fmt: skip
def test_metrics(folder, metric, answers, values):
    scores = load(folder(), metric).score(dict(enumerate(answers)))
    assert list(scores.per_sample[metric].values()) == pytest.approx(values)
    assert scores.metrics[metric] == pytest.approx(sum(values) / 3)


@pytest.mark.parametrize(("bad", "said"), [
    ("{", "line 2: this is no JSON"), ("[1]", "line 2: a row is an object"),
    ({"answer": "x"}, "line 2: there is no question"), ({"question": "x"}, "line 2: there are no answers"),
    ({"question": "x", "answer": "y", "image": "c.png"}, "line 2: there is no file .*c.png"),
    ({"question": "x", "answer": "y", "id": "x"}, "line 2: id 'x' stands in line 1 already"),
])  # fmt: skip
def test_a_broken_row_is_named_by_its_line(folder, bad, said):
    with pytest.raises(UserError, match=said):
        load(folder([ROWS[0], bad]))


def test_what_is_no_folder_of_questions(folder, tmp_path):
    root = folder([])
    with pytest.raises(UserError, match="has no row"):
        load(root)
    (root / "more.csv").write_text("question,answer\n")
    with pytest.raises(UserError, match="one JSONL or CSV file of questions, not more.csv, rows.jsonl"):
        load(root)
    with pytest.raises(UserError, match="there is no folder"):
        load(tmp_path / "none")
    with pytest.raises(UserError, match="no metric 'anl': did you mean anls"):
        load(root, "anl")


def test_csv_and_jsonl_say_the_same(folder, tmp_path):
    one = load(folder())
    shutil.copytree(one.folder, tmp_path / "csv", ignore=shutil.ignore_patterns("*.jsonl"))
    (tmp_path / "csv/rows.csv").write_text(
        "id,question,answers,images,group\nx,Who?,Ann|Anna,a.png,\n2,How much?,100,a.png|b.png,\n"
        '3,Where?,"in the house",,g\n'
    )
    assert load(tmp_path / "csv").rows == one.rows


def test_a_store_is_scored_alone_and_changed_rows_are_other_cells(folder, tmp_path, capsys, monkeypatch):
    from kvbench import store

    monkeypatch.chdir(tmp_path)
    root = folder()
    toy = ["model=qwen2_vl_7b", "model.weights=random", "model.size=toy", "model.dtype=float32"]
    words = [*toy, "benchmark=folder", f"benchmark.data={root}", "benchmark.metric=rougeL"]
    words += ["benchmark.max_new_tokens=3", "method.window=4", "budget=12", "method=fullkv,snapkv"]
    assert main(["run", "-m", *words, "store=s"]) == 0
    assert main(["table", "store=s"]) == 0 and "my-pages rougeL" in capsys.readouterr().out
    before = {cell.digest for cell in store.cells("s")}
    folder([*ROWS[:2], {**ROWS[2], "answer": "outside"}])
    assert main(["plan", "-m", *words, "store=t", "--cells"]) == 0
    assert not any(digest in capsys.readouterr().out for digest in before)


def test_new_writes_the_config(folder, capsys):
    file = conf_dir() / "benchmark/my_pages.yaml"
    try:
        assert main(["new", "benchmark", str(folder()), "metric=exact"]) == 0
        assert "3 questions" in capsys.readouterr().out
        with compose.session():
            config = compose.plain(compose.compose(["benchmark=my_pages"]), resolve=True)["benchmark"]
        assert benchmarks.load(config).metric == "exact" and config["score"] == "exact"
        assert main(["new", "benchmark", str(folder())]) == 2
    finally:
        file.unlink(missing_ok=True)
    assert main(["new", "benchmark"]) == 2
