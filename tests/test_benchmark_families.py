"""Every benchmark of the papers, from config to score, over its micro set and the original task code."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from types import SimpleNamespace

import datasets
import fakestore
import pytest

from kvbench import analysis, benchmarks
from kvbench.benchmarks import captions, micro, needs, subsets, video
from kvbench.benchmarks.micro.drawing import lines, png
from kvbench.cli import main
from kvbench.errors import UserError
from kvbench.planning.parsing import resolved
from kvbench.store import order, record_samples

PICTURES = ("docvqa", "textvqa", "chartqa", "textcaps", "detailcaps", "ocrbench", "mmmu", "mp_docvqa")
PICTURES += ("screenspot", "hrbench_4k", "hrbench_8k")
VIDEOS = ("vatex", "nextqa", "videomme")
TASKS = ("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "gov_report", "qmsum")
TASKS += (
    "multi_news",
    "trec",
    "triviaqa",
    "samsum",
    "passage_count",
    "passage_retrieval_en",
    "lcc",
    "repobench_p",
)
LONG = tuple(f"longbench_{task}" for task in TASKS)
GOLD = {
    "textcaps": lambda doc: doc["caption_str"][0],
    "detailcaps": lambda doc: doc["GT_Caption_GPT4O"],
    "mp_docvqa": lambda doc: ast.literal_eval(doc["answers"])[0],
    "screenspot": lambda doc: str(doc["bbox"]),
    "vatex": lambda doc: doc["enCap"][0],
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("KVBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def load(cache):
    """Load a benchmark once, over its micro set, as the command line resolves it."""
    loaded: dict[str, benchmarks.Benchmark] = {}

    def load(name: str) -> benchmarks.Benchmark:
        if name not in loaded:
            data = [] if name == "longbench_mini" else ["benchmark.data=micro"]
            (cfg,) = resolved([f"benchmark={name}", *data])["benchmark"]
            if name == "vatex":  # one Java start instead of seven
                cfg = {**cfg, "metrics": ["vatex_CIDEr"]}
            loaded[name] = benchmarks.load(cfg)
        return loaded[name]

    return load


def docs(benchmark):
    return benchmark.docs if hasattr(benchmark, "docs") else benchmark.task.eval_docs


def gold(benchmark) -> dict[int, str]:
    def of(doc):
        answer = doc["answers"] if "answers" in doc else doc["answer"]
        return str(answer[0] if isinstance(answer, list) else answer)

    return {i: GOLD.get(benchmark.name, of)(doc) for i, doc in enumerate(docs(benchmark))}


@pytest.mark.parametrize("name", [*PICTURES, *VIDEOS, *LONG])
def test_micro_set_goes_from_config_to_samples(load, name):
    benchmark = load(name)
    samples = benchmark.samples()
    assert 3 <= len(samples) <= 20
    assert all(sample.text.strip() for sample in samples)
    visuals = samples[0].images()
    if name in VIDEOS:
        (clip,) = visuals
        assert len(clip.frames) == 16 and clip.fps == pytest.approx(4)
        assert {frame.mode for frame in clip.frames} == {"RGB"}
    else:
        assert bool(visuals) == (name in PICTURES)
        assert all(image.mode == "RGB" for image in visuals)
    counts = {len(sample.images()) for sample in samples}
    assert max(counts) == {"mp_docvqa": 20, "mmmu": 2}.get(name, len(visuals))


@pytest.mark.parametrize("name", [*PICTURES, "vatex", "videomme", *LONG])
def test_right_answers_score_full_and_empty_ones_nothing(load, name):
    benchmark = load(name)
    full = {"videomme": 100.0}.get(name, 1.0)
    right, nothing = gold(benchmark), dict.fromkeys(range(benchmark.size()), "")
    scored = benchmark.score_cells({"right": right, "nothing": nothing, "again": right}, reference=right)
    assert scored["right"].metrics == scored["again"].metrics  # no cell leaks into the next
    for metric in benchmark.metrics:
        best, worst = scored["right"].metrics[metric], scored["nothing"].metrics[metric]
        if metric.endswith("_CIDEr"):
            assert best > 1 and worst == 0
        elif name == "mmmu":  # an unreadable choice is drawn, with a fixed seed; the open question scores 0
            assert best == full and 0 <= worst < full
        else:
            assert best == pytest.approx(full, abs=1e-4) and worst == 0
        values = scored["right"].per_sample[metric]
        assert sum(values.values()) / len(values) == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("name", [name for name in (*PICTURES, "vatex", "videomme")])
def test_replay_equals_lmms_eval_driving_the_model(load, name, monkeypatch):
    from direct import drive

    benchmark = load(name)
    known = gold(benchmark)
    canned = {i: text if i % 2 else f"{text[:2]} 不 B" for i, text in known.items()}
    prepared = []

    class Adapter:
        pixels = None

        def prepare(self, text, images):
            prepared.append((text, len(images)))
            return len(prepared) - 1

    def generate(adapter, inputs, methods, *, max_new_tokens, until):
        assert (max_new_tokens, until) == (benchmark.max_new_tokens, benchmark.until)
        return [SimpleNamespace(text=canned[inputs])]

    monkeypatch.setattr(importlib.import_module("kvbench.engine.generate"), "generate", generate)
    figures, _ = drive(benchmark, Adapter(), None, range(benchmark.size()))
    samples = benchmark.samples()
    assert prepared == [(sample.text, len(sample.images())) for sample in samples]
    replayed = benchmark.score(canned, reference=canned).metrics
    assert {metric: replayed[metric] for metric in figures} == figures
    if benchmark.caption_metrics:
        (metric,) = benchmark.caption_metrics
        assert replayed[metric] == benchmark.own_figures(canned, [metric])[metric]
    else:
        assert figures


LINE = "Anna Weber "
KNOWN = {  # benchmark: {answer to the first sample: its score}
    "docvqa": {"ANNA weber": 1, "Anna Webe": 0.9, "Luis": 0, LINE * 200: 0, "安娜·韦伯": 0},
    "textvqa": {"Blue Harbor.": 1, "a shop": 0.3, "Old Mill": 0, "蓝港": 0, "blue harbor " * 99: 0},
    "chartqa": {"20": 1, "21": 1, "21.1": 0, "twenty": 0, "二十": 0, "20 " * 400: 0},
    "ocrbench": {
        "it says BLUE HARBOR here": 1,
        "Ｂｌｕｅ　Ｈａｒｂｏｒ": 1,
        "Blue": 0,
        "蓝港": 0,
        "Blue Harbor " * 300: 1,
    },
    "mmmu": {"B": 1, "(B)": 1, "A": 0, "The highest bar of the chart is B1": 1, "A or else (B)": 1},
    "mp_docvqa": {"18.75": 1, "18.7": 0.8, "none": 0, "一八": 0, "18.75 " * 300: 0},
    "screenspot": {
        "[0.1, 0.15, 0.2, 0.2]": 1,
        "(50, 100, 350, 300)": 1,
        "[0.5, 0.5, 0.9, 0.9]": 0,
        "左上": 0,
    },
    "hrbench_4k": {"A": 1, "(A) EXIT": 1, "the sign reads exit": 1, "B": 0, "A or B": 0, "出口": 0},
    "videomme": {"B": 100, "B. green.": 100, "(B)": 100, "A": 0, "绿色": 0},
    "longbench_mini": {"Sixteen years": 1, "sixteen!": 1, "For sixteen years": 0.8, "ten": 0, "十六年": 0},
    "longbench_trec": {"Number of something": 1, "Number of something, City": 0.5, "Date": 0, "数": 0},
    "longbench_passage_count": {"2": 1, "2 or 3": 0.5, "two": 0, "二": 0},
    "longbench_passage_retrieval_en": {"Paragraph 1": 1, "1 or 2": 0.5, "Paragraph 3": 0, "第一": 0},
}


@pytest.mark.parametrize("name", KNOWN)
def test_metrics_on_answers_whose_score_is_known_by_hand(load, name):
    benchmark = load(name)
    others = gold(benchmark)
    cells = {text: {**others, 0: text} for text in KNOWN[name]}
    scored = benchmark.score_cells(cells)
    found = {text: scored[text].per_sample[benchmark.metric][0] for text in cells}
    if name == "mp_docvqa":
        text = gold(benchmark)[0]
        assert text == "18.75" or pytest.fail(f"the first answer is {text}")
    assert found == pytest.approx(KNOWN[name], abs=1e-9)


def test_wups_on_known_answers(load, monkeypatch):
    """WordNet's data are large and not installed: words count as alike only when equal."""
    benchmark = load("nextqa")
    with pytest.raises(UserError, match="WUPS"):
        monkeypatch.setitem(needs.CHECKS, "wordnet", lambda name: f"{name} needs word data for WUPS.")
        benchmark.score(gold(benchmark))
    monkeypatch.setitem(needs.CHECKS, "wordnet", lambda name: None)
    words = benchmark.task.config.process_results.__globals__
    monkeypatch.setitem(words, "lemmatize_sentence", str.split)
    monkeypatch.setitem(words, "word_tokenize", str.split)
    monkeypatch.setitem(words, "wordnet", SimpleNamespace(synsets=lambda word: []))
    assert benchmark.score(gold(benchmark)).metrics["WUPS"] == 100
    one = benchmark.score({**dict.fromkeys(range(6), "zebra"), 0: "slide"})
    assert one.metrics["WUPS"] == pytest.approx(100 / 6) and one.per_sample["WUPS"][0] == 100


def test_video_caption_metrics(load):
    (cfg,) = resolved(["benchmark=vatex", "benchmark.data=micro"])["benchmark"]
    assert cfg["metrics"] == ["vatex_CIDEr", "vatex_Bleu_4", "vatex_METEOR", "vatex_ROUGE_L"]
    benchmark = benchmarks.load({**cfg, "metrics": ["vatex_CIDEr", "vatex_Bleu_4", "vatex_ROUGE_L"]})
    metrics = benchmark.score(gold(benchmark)).metrics
    assert metrics["vatex_Bleu_4"] == pytest.approx(1) and metrics["vatex_ROUGE_L"] == pytest.approx(1)


def test_scores_do_not_depend_on_a_launchers_ranks(load, monkeypatch):
    benchmark = load("docvqa")
    answers = {**gold(benchmark), 0: "no"}
    alone = benchmark.score(answers)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert benchmark.score(answers) == alone


def test_screenspot_tells_platforms_and_kinds_apart(load):
    benchmark = load("screenspot")
    answers = {i: text if i == 0 else "" for i, text in gold(benchmark).items()}
    metrics = benchmark.score(answers).metrics
    assert metrics["center_mobile_text"] == 1
    assert [name for name, value in metrics.items() if value] == [
        "screenspot_Center_ACC",
        "center_mobile_text",
    ]
    first = benchmark.score({0: answers[0]}, [0])
    assert "center_web_icon" not in first.metrics
    assert any("center_web_icon" in sentence for sentence in first.warnings)


def test_subsets():
    data = datasets.Dataset.from_dict({"kind": list("abab" * 5), "n": list(range(20))})
    assert subsets.indices("full", data, "x") is None
    assert subsets.indices("first_3", data, "x") == [0, 1, 2]
    assert subsets.indices("last_3", data, "x") == [17, 18, 19]
    drawn = subsets.indices("random_7", data, "x")
    assert drawn == sorted(set(drawn)) and len(drawn) == 7 and drawn != list(range(7))
    assert drawn == subsets.indices("random_7", data, "x")
    assert subsets.indices("kind=b", data, "x") == list(range(1, 20, 2))
    for wrong in ("first_21", "random_0", "some", "colour=b", "kind=c"):
        with pytest.raises(UserError, match="subset"):
            subsets.indices(wrong, data, "x")


def test_a_subset_selects_pictures_and_answers_alike(load):
    ((cfg,),) = (
        resolved(["benchmark=docvqa", "benchmark.data=micro", "benchmark.subset=random_2"])["benchmark"],
    )
    part, whole = benchmarks.load(cfg), load("docvqa")
    chosen = subsets.indices("random_2", whole.task.eval_docs, "docvqa")
    assert [s.id for s in part.samples()] == [whole.samples()[i].id for i in chosen]
    assert part.samples()[1].images()[0].tobytes() == whole.samples()[chosen[1]].images()[0].tobytes()
    assert part.score({n: gold(whole)[i] for n, i in enumerate(chosen)}).metrics["anls"] == 1


def test_video_mme_takes_the_long_videos(load):
    assert load("videomme").size() == 5  # one of the six is short


def test_sample_lists_are_kept_and_compared(tmp_path):
    assert order(tmp_path, {"name": "x"}) is None
    record_samples(tmp_path, {"name": "x"}, [2, 0, 1], {0: "a", 2: "c"})
    record_samples(tmp_path, {"name": "x"}, [2, 0, 1], {2: "c"})
    record_samples(tmp_path, {"name": "x", "subset": "first_1"}, [0], {0: "z"})
    record_samples(tmp_path, {"name": "x"}, [2, 0, 1], {0: "a", 1: "b", 2: "c"})
    assert order(tmp_path, {"name": "x"}) == [2, 0, 1]
    assert len(list(tmp_path.glob("samples-*.json"))) == 2
    with pytest.raises(UserError, match="sample 1 of x was b and is e"):
        record_samples(tmp_path, {"name": "x"}, [2, 0, 1], {0: "a", 1: "e", 2: "c"})
    with pytest.raises(UserError, match="the pictures of x are not those of earlier answers"):
        record_samples(tmp_path, {"name": "x"}, [0, 1, 2], {0: "a"})


def test_a_changed_schema_is_named(tmp_path):
    datasets.Dataset.from_dict({"questionId": ["1"], "question": ["?"], "answers": [["x"]]}).to_parquet(
        str(tmp_path / "validation.parquet")
    )
    with pytest.raises(UserError, match="no column 'image'"):
        benchmarks.load(fakestore.benchmark_cfg("docvqa", tmp_path))


@pytest.mark.parametrize("broken", [0, 1])
def test_an_unreadable_picture_is_named(tmp_path, broken):
    pictures = [{"bytes": png(lines(["fine"])), "path": None} for _ in range(2)]
    pictures[broken]["bytes"] = b"no picture"
    rows = {"questionId": ["1", "2"], "question": ["?"] * 2, "answers": [["x"]] * 2, "image": pictures}
    data = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    data.to_parquet(str(tmp_path / "validation.parquet"))
    with pytest.raises(UserError, match="cannot be read"):
        benchmarks.load(fakestore.benchmark_cfg("docvqa", tmp_path)).samples()[broken].images()


def test_missing_and_unreadable_videos_are_named(tmp_path):
    cfg = {"name": "vatex", "videos": str(tmp_path)}
    with pytest.raises(UserError, match="finds no video red"):
        video.find(cfg, "red")
    (tmp_path / "red.mp4").write_bytes(b"no video")
    with pytest.raises(UserError, match="cannot be read"):
        video.clip(video.find(cfg, "red"), 4)


def test_frames_are_evenly_spaced():
    path = micro.folder("vatex") / "videos" / "red.mp4"
    clip = video.clip(path, 4)
    lefts = []
    for frame in clip.frames:  # where the red square stands
        row = [frame.getpixel((x, 48)) for x in range(frame.width)]
        lefts.append(next(x for x, (red, green, _) in enumerate(row) if red - green > 80))
    steps = [b - a for a, b in zip(lefts, lefts[1:], strict=False)]
    assert len(lefts) == 4 and max(steps) - min(steps) <= 3 and min(steps) > 15
    assert clip.fps == pytest.approx(1)


def test_a_tokenizer_that_fails_once_does_not_freeze_the_score(tmp_path, monkeypatch):
    cfg = fakestore.benchmark_cfg("textcaps", "micro")
    texts = {index: f"A sign says {index}." for index in range(5)}
    fakestore.add(tmp_path, cfg, fakestore.method_cfg("fullkv"), None, texts)

    def broken(blocks):
        raise UserError("Java's PTB tokenizer failed (out of memory).")

    with monkeypatch.context() as patch:
        patch.setattr(captions, "tokenize", broken)
        assert any("out of memory" in sentence for sentence in analysis.score_store(tmp_path))
    assert not analysis.score_store(tmp_path)
    assert "textcaps_CIDEr" in (tmp_path / "results.csv").read_text()


def test_doctor_says_what_is_missing_and_how_to_get_it(capsys, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    assert main(["doctor", "benchmark=docvqa,longbench_qasper", "benchmark.data=micro"]) == 0
    assert main(["doctor", "benchmark=videomme"]) == 1
    said = capsys.readouterr().out
    assert "kvbench fetch benchmark=videomme" in said and "about 101" in said and "no video in" in said
    (tmp_path / "datasets--lmms-eval--Video-MME" / "snapshots" / "abc" / "videomme").mkdir(parents=True)
    (tmp_path / "videomme" / "data").mkdir(parents=True)
    (tmp_path / "videomme" / "data" / "x.mp4").touch()
    assert main(["doctor", "benchmark=videomme"]) == 0
    assert main(["doctor", "model=qwen2_vl_7b"]) == 1
    assert main(["doctor", "benchmark=docvga"]) == 2


def test_fetch_offline_is_one_sentence(capsys, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["fetch", "benchmark=docvqa"]) == 2
    assert main(["fetch"]) == 2
    assert main(["fetch", "benchmark=docqa_mini"]) == 0
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err


def test_videos_are_unpacked_flat(tmp_path):
    import zipfile

    from kvbench.setup.fetch import unpack

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("deep/down/clip.mp4", b"1")
        archive.writestr("readme.txt", b"2")
    assert unpack(tmp_path, tmp_path / "out") == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["clip.mp4"]


def test_doctor_and_plan_import_no_torch():
    code = (
        "import sys; from kvbench.cli import main; main(['doctor']);"
        "main(['plan', 'benchmark=mmmu', 'benchmark.data=micro', 'limit=2']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'lmms_eval', 'transformers', 'datasets')))"
    )
    # The first one draws what is not there yet.
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
