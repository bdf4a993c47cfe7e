"""Any task of lmms-eval: found, refused with its reason, asked in its own words, scored by its own code."""

from __future__ import annotations

import datasets
import pytest
from PIL import Image

from kvbench import benchmarks
from kvbench.benchmarks import catalogue
from kvbench.cli import main
from kvbench.errors import UserError
from kvbench.planning.parsing import resolved


def picture(number: int) -> Image.Image:
    return Image.new("RGB", (60, 48), (number * 30, 0, 0))


PLACES = [{"image": picture(n), "question": f"Where is {n}?"} for n in range(4)]
# By task: rows in its schema, the first prompt, answers, and the figures that they deserve.
TASKS = {
    "infovqa_val": (
        [{**row, "questionId": str(n), "answers": [f"place {n}", f"{n}"]} for n, row in enumerate(PLACES)],
        "Where is 0?\nAnswer the question using a single word or phrase.",
        ["place 0", "1", "plase 2", "nowhere at all"],
        {"anls": (1 + 1 + 6 / 7) / 4},
    ),
    "realworldqa": (
        [{**row, "answer": "B" if n else "Downhill"} for n, row in enumerate(PLACES)],
        "Where is 0?",
        ["downhill.", "B", "B. there", "A"],
        {"exact_match": 0.75},
    ),
    "pope": (
        [{**row, "question_id": str(n), "answer": ["yes", "no"][n % 2]} for n, row in enumerate(PLACES)],
        "Where is 0?\nAnswer the question using a single word or phrase.",
        ["yes", "yes", "no", "no"],
        {"pope_accuracy": 0.5, "pope_precision": 0.5, "pope_recall": 0.5, "pope_yes_ratio": 0.5},
    ),
    "ai2d": (
        [{**row, "options": ["here", "there"], "answer": str(n % 2)} for n, row in enumerate(PLACES)],
        "Where is 0?\nA. here\nB. there\nAnswer with the option's letter from the given choices directly.",
        ["A", "B. there", "B", "nothing"],
        {"exact_match": 0.5},
    ),
    "mmstar": (
        [
            {**row, "index": n, "answer": "A", "category": "math", "l2_category": "geometry", "meta_info": ""}
            for n, row in enumerate(PLACES)
        ],
        "Where is 0?\nAnswer with the option's letter from the given choices directly",
        ["A", "A", "A", "C"],
        {"math": 0.75},
    ),
}


@pytest.fixture
def asked(tmp_path):
    def load(name: str, **options):
        rows, *_ = TASKS[name]
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        datasets.Dataset.from_list(rows).to_parquet(str(folder / f"{catalogue.task(name).split}.parquet"))
        words = [f"benchmark={name}", f"benchmark.data={folder}"]
        words += [f"benchmark.{key}={value}" for key, value in options.items()]
        return words

    return load


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_asked_and_scored_by_its_own_code(name, asked):
    _, prompt, answers, figures = TASKS[name]
    limit = {} if catalogue.task(name).max_new_tokens else {"max_new_tokens": 8}
    (config,) = resolved(asked(name, **limit), every=False)["benchmark"]
    benchmark = benchmarks.load(config)
    samples = benchmark.samples()
    first = next(sample for sample in samples if sample.index == 0)
    assert len(samples) == 4 and first.text == prompt and first.images()[0].size == (60, 48)
    scores = benchmark.score(dict(enumerate(answers)), range(4)).metrics
    assert {key: scores.get(key) for key in figures} == pytest.approx(figures)
    assert config["name"] == name == config["task"] and config["metric"] == catalogue.task(name).metrics[0]


def test_a_run_is_scored_from_the_store_alone(asked, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*asked("infovqa_val", max_new_tokens=4), "model=qwen2_vl_7b", "model.weights=random"]
    words += ["model.size=toy", "model.dtype=float32", "method.window=8", "budget=24", "limit=2"]
    assert main(["run", "-m", *words, "method=fullkv,snapkv", "store=s"]) == 0
    assert main(["table", "store=s"]) == 0
    shown = capsys.readouterr().out
    assert "infovqa_val ANLS" in shown and "—" not in shown
    assert main(["run", *words[:1], "benchmark.metric=exact_match", "store=s"]) == 2
    assert "benchmark.metric is not an option of a run" in capsys.readouterr().err


def test_by_its_own_key_and_by_name_it_is_one_benchmark():
    (named,) = resolved(["benchmark=scienceqa_img"], every=False)["benchmark"]
    (keyed,) = resolved(["benchmark=lmms", "benchmark.task=scienceqa_img"], every=False)["benchmark"]
    assert named == keyed and named["data"] == "lmms-lab-encoder/ScienceQA"


@pytest.mark.parametrize(("task", "said"), [
    ("mmvet", "scored by another model"), ("mmbench_en_dev", "scored by another model"),
    ("vqav2_vall", "did you mean vqav2_val"), ("null", "set benchmark.task=NAME"),
    ("mmstar", "names no limit: set benchmark.max_new_tokens=N"),
])  # fmt: skip
def test_what_cannot_be_run_says_why(task, said, capsys):
    assert main(["plan", "benchmark=lmms", f"benchmark.task={task}", "method=fullkv"]) == 2
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1


def test_tasks_are_listed(capsys):
    assert main(["list", "tasks", "vqav2"]) == 0
    shown = capsys.readouterr().out
    assert "vqav2_val" in shown and "lmms-lab-encoder/VQAv2" in shown and "pope" not in shown
    assert main(["list", "tasks"]) == 0
    assert "mmvet" in capsys.readouterr().out
    assert main(["list", "tasks", "nothing-like-it"]) == 2


def test_every_task_is_read_and_most_can_be_run():
    every = list(catalogue.every())
    assert len(every) > 1000 and sum(not task.why for task in every) > 800
    with pytest.raises(UserError, match="did you mean"):
        catalogue.task("docvqa_vall")
