"""Replayed answers get lmms-eval's own figures; fidelity and captions are computed beside it."""

from __future__ import annotations

import importlib
import json
import math
import random
import shutil

import fakestore
import minidata
import pytest
from fakestore import benchmark_cfg, method_cfg

from kvbench import analysis, benchmarks
from kvbench.benchmarks import captions
from kvbench.benchmarks.fidelity import first_divergence, rouge_l, words
from kvbench.errors import UserError

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no Java")

# Awkward on purpose: blanks, line breaks, abbreviations at the end, quotes, nothing at all.
ANSWERS = {0: "answer 0", 1: " word1\n\nand more", 2: "32", 3: ""}
CAPTIONS = [
    {0: "A red bus.", 1: "The sign of Acme Inc.", 2: "a cup of tea, etc.", 3: 'A book "The Sea"'},
    {0: "The U.S. bus", 1: "No parking", 2: "", 3: "A book on a bed by Acme Inc."},
    {0: "Mr. Bus is red.\nThe bus", 1: "don't park", 2: "5", 3: "No. 5 on a bed."},
]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    patch = pytest.MonkeyPatch()
    patch.setenv("KVBENCH_CACHE", str(folder / "cache"))
    patch.chdir(tmp_path_factory.mktemp("cwd"))
    names = ("docqa_mini", "textqa_mini", "chartqa_mini", "caption_mini", "describe_mini")
    yield {name: minidata.write(folder, name) for name in names}
    patch.undo()


def load(sets, name):
    return benchmarks.load(benchmark_cfg(name, sets[name]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("docqa_mini", [1.0, 0, 0.5, 0]), ("textqa_mini", [0, 0, 0, 0]), ("chartqa_mini", [0, 0, 0, 0])],
)
def test_replay_scores_known_answers(sets, name, expected):
    benchmark = load(sets, name)
    scores = benchmark.score(ANSWERS)
    assert list(scores.per_sample[benchmark.metric].values()) == expected
    assert scores.metrics[benchmark.metric] == sum(expected) / 4
    assert scores.n == 4


def test_gold_answers_score_one(sets):
    assert load(sets, "docqa_mini").score({i: f"ANSWER {i}\n" for i in range(4)}).metrics["anls"] == 1
    assert load(sets, "textqa_mini").score({i: f"Word{i}." for i in range(4)}).metrics["exact_match"] == 1
    chart = load(sets, "chartqa_mini").score({0: "10.4", 1: "21.1", 2: "30", 3: "40"})
    assert chart.metrics["relaxed_overall"] == 0.75  # 21.1 is outside 5 % of 20
    assert chart.per_sample["relaxed_human_split"] == {1: 0.0, 3: 1.0}
    assert chart.metrics["relaxed_human_split"] == 0.5


def test_anls_divides_by_the_length_of_what_it_compares(sets):
    """lmms-eval's own would be 1 - 4 / 32 for the first; for texts without inner blanks the two agree."""
    from lmms_eval.api.metrics import anls

    far = "w" + 30 * " " + "z"
    assert anls(["abcd"], [far])["anls"] == 0.875
    answers = {0: far, 1: "answer\n 1", 2: "answer2", 3: "  answer 3 "}
    found = load(sets, "docqa_mini").score(answers).per_sample["anls"]
    assert dict(found) == {0: 0, 1: 1, 2: pytest.approx(7 / 8), 3: 1}
    assert anls(["answer 2", "2"], ["answer2"])["anls"] == found[2]


@pytest.fixture
def diagrams(tmp_path):
    """AI2D's schema: its task reads answers through a filter of its own."""
    rows = [
        {"question": "which?", "options": ["sun", "moon"], "answer": str(i % 2), "image": minidata.picture(i)}
        for i in range(4)
    ]
    minidata.datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "test.parquet"))
    usual = {"name": "ai2d", "kind": "lmms_eval", "task": "ai2d", "data": str(tmp_path)}
    return {**usual, "max_new_tokens": 16}


@pytest.mark.parametrize("metric", ["exact_match", "exact_match,flexible-extract"])
def test_metrics_behind_a_filter_are_kept(diagrams, metric):
    scores = benchmarks.load({**diagrams, "metric": metric}).score({0: "A. sun", 1: "A", 2: "a", 3: "moon"})
    assert scores.metrics == {metric: 0.5} and not scores.warnings
    assert dict(scores.per_sample[metric]) == {0: 1, 1: 0, 2: 1, 3: 0}


def test_each_of_several_filters_has_its_figures(diagrams, monkeypatch):
    from kvbench.benchmarks import loading

    plain = {"name": "strict", "filter": [{"function": "take_first"}]}

    def with_two(cfg, own=loading.task_config):
        config = own(cfg)
        return {**config, "filter_list": [plain, *config["filter_list"]]}

    monkeypatch.setattr(loading, "task_config", with_two)
    names = ["exact_match,strict", "exact_match,flexible-extract"]
    cfg = {**diagrams, "metric": names[0], "metrics": names}
    scores = benchmarks.load(cfg).score({0: "A. sun", 1: "B", 2: "no", 3: "no"})
    assert scores.metrics == {names[0]: 0.25, names[1]: 0.5} and scores.n == 4
    assert [dict(scores.per_sample[name])[0] for name in names] == [0, 1]
    with pytest.raises(UserError, match="no metric 'exact_match': choose from .*exact_match,strict"):
        benchmarks.load({**diagrams, "metric": "exact_match"})


def test_some_samples_are_scored_by_their_place_in_the_data_set(sets):
    scores = load(sets, "docqa_mini").score({1: "no", 3: "answer 3"}, [1, 3])
    assert (scores.n, scores.metrics["anls"]) == (2, 0.5)
    assert scores.per_sample["anls"] == {1: 0.0, 3: 1.0} and list(scores.clusters) == [1, 3]


def test_nothing_is_written_where_the_user_works(sets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load(sets, "textqa_mini").own_figures(ANSWERS)
    if shutil.which("java"):
        load(sets, "caption_mini").own_figures({i: "a bus" for i in range(4)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({0: "a", 1: "b", 2: "c"}, "lacks the answers of samples 3"),
        ({**ANSWERS, 7: "x"}, "answers of samples 7 that are not to be scored"),
        ({**ANSWERS, 2: None}, "no text for samples 2"),
    ],
)
def test_unmatched_and_failed_samples_are_named(sets, answers, message):
    with pytest.raises(UserError, match=message):
        load(sets, "docqa_mini").score(answers)


class TestFidelity:
    def test_values(self):
        assert rouge_l("", "") == 1 and rouge_l("!", "!") == 1
        assert rouge_l("", "a word") == 0
        assert rouge_l("the cat sat", "the cat sat down") == pytest.approx(2 * 1 * 0.75 / 1.75)
        assert rouge_l("running", "runs") == 0  # no stemmer

    @pytest.mark.parametrize(
        ("answer", "reference", "least"),
        [
            ("мир", "мир ", 1),
            ("北京是中国的首都。", "北京是中国的首都", 1),
            ("北京是中国的首都。", "北京是中国的大都市。", 0.7),
            ("ภาษาไทยง่ายมาก", "ภาษาไทยง่าย", 0.8),
            ("cafe\u0301 noir", "café noir", 1),
        ],
    )
    def test_words_of_every_script_count(self, answer, reference, least):
        assert least <= rouge_l(answer, reference) <= 1 == rouge_l(answer, answer)
        assert (rouge_l(answer, reference) == 1) == (least == 1)

    def test_other_words_of_other_scripts_do_not_agree(self):
        assert rouge_l("мир", "война") == rouge_l("東京", "北海") == rouge_l("ไทย", "ลาว") == 0

    def test_marks_belong_to_their_letter(self):
        assert words("हिन्दी भाषा") == ["हिन्दी", "भाषा"] and words("ง่าย") == ["ง่", "า", "ย"]

    def test_ascii_words_are_rouge_scores_own(self):
        from rouge_score.tokenize import tokenize

        letters = random.Random(0)
        texts = ["".join(chr(letters.randrange(128)) for _ in range(30)) for _ in range(2000)]
        assert all(words(text) == tokenize(text, None) for text in texts)

    def test_divergence_counts_equal_answers_in_full(self):
        assert first_divergence([1, 2, 3], [1, 2, 4]) == 2
        assert first_divergence([1, 2], [1, 2]) == 2
        assert first_divergence([1, 2], [1, 2, 3]) == 2
        assert first_divergence([9], [1]) == 0
        assert first_divergence([], []) == 0

    def test_documents(self):
        benchmark = benchmarks.load(benchmark_cfg("documents_mini"))
        full = {0: "one two three", 1: "four five"}
        scores = benchmark.score(
            {0: "one two", 1: "four five"},
            [0, 1],
            reference=full,
            tokens={0: [1, 2], 1: [4, 5]},
            reference_tokens={0: [1, 2, 3], 1: [4, 5]},
        )
        assert scores.metrics == {
            "fidelity_rougeL": pytest.approx(0.9),
            "answer_agreement": 0.5,
            "first_divergence": 2.0,
        }

    def test_without_uncompressed_answers_it_says_so(self):
        scores = benchmarks.load(benchmark_cfg("documents_mini")).score({0: "a"}, [0])
        assert "fidelity_rougeL" not in scores.metrics
        assert "method=fullkv" in scores.warnings[0]


@needs_java
class TestCaptions:
    def test_one_java_call_gives_lmms_evals_own_figure(self, sets, monkeypatch):
        calls = []
        real = captions.subprocess.run
        monkeypatch.setattr(captions.subprocess, "run", lambda *a, **k: calls.append(1) or real(*a, **k))
        benchmark = load(sets, "caption_mini")
        scores = benchmark.score_cells({str(k): answers for k, answers in enumerate(CAPTIONS)})
        assert len(calls) == 1
        for k, answers in enumerate(CAPTIONS):
            metric = "textcaps_CIDEr"
            own = benchmark.own_figures(answers, [metric])[metric]
            assert scores[str(k)].metrics[metric] == own  # to the last digit
            values = list(scores[str(k)].per_sample[metric].values())
            assert len(values) == 4 and sum(values) / 4 == pytest.approx(own, abs=1e-12)
        assert 0 < scores["0"].metrics["textcaps_CIDEr"] != scores["1"].metrics["textcaps_CIDEr"]

    def test_descriptions_too(self, sets):
        benchmark = load(sets, "describe_mini")
        own = benchmark.own_figures(CAPTIONS[0], ["detailcaps_CIDEr"])["detailcaps_CIDEr"]
        assert benchmark.score(CAPTIONS[0], reference=CAPTIONS[0]).metrics["detailcaps_CIDEr"] == own > 0

    def test_blocks_do_not_disturb_one_another(self):
        """The tokenizer looks past the line: "No." before a digit and "J. R." before a capital differ."""
        from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

        blocks = [["A bus.", "No."], ["5 cups", "by J. R."], ["The U.S. bus", 'say "'], ["Upper case", ""]]
        together = captions.tokenize(blocks)
        for block, ours in zip(blocks, together, strict=True):
            alone = PTBTokenizer().tokenize({i: [{"caption": text}] for i, text in enumerate(block)})
            assert ours == [alone[i][0] for i in range(len(block))]
        assert captions.tokenize([[text for block in blocks for text in block]])[0] != sum(together, [])

    def test_strange_line_ends_stay_inside_a_caption(self):
        (tokens,) = captions.tokenize([["a\u2028b\rc\x0bd", "e"]])
        assert tokens == ["a b c d", "e"]

    def test_line_ends_inside_a_caption_shift_pycocoevalcaps_own_output(self, sets):
        """The exception to equal figures: Java ends a line there, and every later caption is another's."""
        benchmark = load(sets, "caption_mini")
        right = {0: "A red bus stands at the stop.", 1: "No parking sign", 2: "A cup of tea", 3: "A book"}
        broken = {**right, 0: "A red bus\u2028stands at the stop."}
        ours = [benchmark.score(answers).metrics["textcaps_CIDEr"] for answers in (right, broken)]
        own = [benchmark.own_figures(a, ["textcaps_CIDEr"])["textcaps_CIDEr"] for a in (right, broken)]
        assert ours[0] == ours[1] == own[0] and own[1] < ours[1] / 2
        assert [round(value, 3) for value in (ours[1], own[1])] == [3.129, 0.744]  # as docs/design.md has it

    def test_one_image_has_no_cider(self, sets):
        scores = load(sets, "caption_mini").score({0: "a red bus"}, [0])
        assert scores.metrics["textcaps_CIDEr"] == 0 and "single image" in scores.warnings[0]


def test_no_java_costs_only_the_captions(sets, monkeypatch):
    monkeypatch.setattr(captions.shutil, "which", lambda name: None)
    scores = load(sets, "describe_mini").score(CAPTIONS[0], reference=CAPTIONS[0])
    assert scores.metrics["fidelity_rougeL"] == 1 and "detailcaps_CIDEr" not in scores.metrics
    assert len(scores.warnings) == 1 and "Java" in scores.warnings[0]


def test_replay_equals_lmms_eval_driving_the_model(sets, monkeypatch):
    """With a stand-in for the engine; the real models are driven in the tests of the embedded model."""
    from types import SimpleNamespace

    from direct import drive

    # By this name the package shows the function, not the module.
    engine = importlib.import_module("kvbench.engine.generate")

    seen = []

    def generate(adapter, inputs, methods, *, max_new_tokens, until):
        text, images = inputs
        seen.append((text, images[0].size, max_new_tokens, until))
        return [SimpleNamespace(text=ANSWERS[images[0].size[0] - 8])]

    monkeypatch.setattr(engine, "generate", generate)
    adapter = SimpleNamespace(prepare=lambda text, images: (text, images))
    for name in ("docqa_mini", "textqa_mini", "chartqa_mini"):
        benchmark = load(sets, name)
        seen.clear()
        figures, logged = drive(benchmark, adapter, "method", [0, 1, 3])
        samples = benchmark.at([0, 1, 3])
        assert [sample["doc_id"] for sample in logged] == [0, 1, 3]
        assert seen == [(s.text, s.images()[0].size, benchmark.max_new_tokens, []) for s in samples]
        replayed = benchmark.score({index: ANSWERS[index] for index in (0, 1, 3)}, [0, 1, 3])
        assert figures == replayed.metrics


class TestStore:
    def fill(self, sets, store, n=4, compressed=4):
        cfg = benchmark_cfg("docqa_mini", sets["docqa_mini"])
        fakestore.add(store, cfg, method_cfg("fullkv"), None, {i: f"answer {i}" for i in range(n)})
        texts = {i: f"answer {i}" if i % 2 else "no" for i in range(compressed)}
        return fakestore.add(store, cfg, method_cfg("snapkv"), 64, texts)

    def test_scores_and_tidy_results(self, sets, tmp_path):
        cell = self.fill(sets, tmp_path)
        assert analysis.score_store(tmp_path) == []
        rows = (tmp_path / "results.csv").read_text().splitlines()
        head = rows[0].split(",")
        anls = [dict(zip(head, row.split(","), strict=True)) for row in rows[1:] if ",anls," in row]
        assert [(row["method"], row["budget"], row["value"], row["n"]) for row in anls] == [
            ("fullkv", "", "1.0", "4"),
            ("snapkv", "64", "0.5", "4"),
        ]
        assert anls[1]["kept_mean"] == "64.0" and anls[1]["digest"] == cell.digest
        stored = json.loads((cell.folder / "scores" / f"{cell.digest}.json").read_text())
        assert stored["metrics"]["fidelity_rougeL"] == 0.5  # against the stored fullkv answers

    def test_answers_are_not_scored_against_other_data(self, sets, tmp_path):
        cfg = benchmark_cfg("docqa_mini", sets["docqa_mini"]) | {"revision": "older"}
        fakestore.add(tmp_path, cfg, method_cfg("fullkv"), None, {i: f"answer {i}" for i in range(4)})
        (warning,) = analysis.score_store(tmp_path)
        assert "answered with other data (older)" in warning
        assert not list(tmp_path.glob("*/*/scores/*.json"))

    def test_a_second_call_computes_nothing_and_an_edit_does(self, sets, tmp_path, monkeypatch):
        self.fill(sets, tmp_path)
        analysis.score_store(tmp_path)
        before = (tmp_path / "results.csv").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(benchmarks, "load", lambda cfg: pytest.fail("scored again"))
            analysis.score_store(tmp_path)
        assert (tmp_path / "results.csv").read_bytes() == before
        cfg = benchmark_cfg("docqa_mini", sets["docqa_mini"])
        fakestore.add(tmp_path, cfg, method_cfg("snapkv"), 32, {i: "no" for i in range(4)})
        analysis.score_store(tmp_path)
        assert b",32,16," in (tmp_path / "results.csv").read_bytes()

    def test_an_unfinished_cell_is_a_hole_with_a_reason(self, sets, tmp_path):
        cell = self.fill(sets, tmp_path, compressed=3)
        (warning,) = analysis.score_store(tmp_path)
        assert "snapkv at budget 64 on docqa_mini is not scored: samples 3 are not answered yet" in warning
        assert not (cell.folder / "scores" / f"{cell.digest}.json").exists()
        table = analysis.table(tmp_path)
        assert "—" in table
        assert (
            "kvbench run model=toy benchmark=docqa_mini method=snapkv budget=64 method.window=16 limit=4"
            in table
        )

    def test_missing_data_of_one_benchmark_leaves_the_others(self, sets, tmp_path):
        self.fill(sets, tmp_path)
        gone = benchmark_cfg("chartqa_mini", tmp_path / "gone")
        fakestore.add(tmp_path, gone, method_cfg("fullkv"), None, {0: "1"})
        (warning,) = analysis.score_store(tmp_path)
        assert "chartqa_mini is not scored" in warning
        assert ",anls,1.0," in (tmp_path / "results.csv").read_text()

    def test_an_empty_store(self, tmp_path):
        for call in (analysis.score_store, analysis.table):
            with pytest.raises(UserError, match="store=DIR"):
                call(tmp_path)


def test_scores_survive_json_with_nan():
    scores = benchmarks.Scores(2, {"anls": math.nan}, {"anls": {0: 1.0, 1: math.nan}}, ["x."])
    again = benchmarks.Scores.from_dict(json.loads(json.dumps(scores.to_dict(), allow_nan=False)))
    assert math.isnan(again.metrics["anls"]) and again.per_sample["anls"][0] == 1
    assert math.isnan(again.per_sample["anls"][1]) and again.warnings == ["x."]


def _log(cell, index, **more):
    from kvbench.store.journal import seal

    record = {"cell": cell.digest, "sample": f"s{index}", "index": index, **more}
    with open(cell.folder / "journal.jsonl", "ab") as journal:
        journal.write(seal(record))


@pytest.mark.parametrize(
    ("permanent", "advice"),
    [
        ([True, True], "for good; leave them out"),
        ([True, False], "run the same command again"),
        ([False, False], "run the same command again"),
    ],
)
def test_failures_are_for_good_only_if_all_are(tmp_path, permanent, advice):
    cfg = benchmark_cfg("documents_mini")
    cell = fakestore.add(tmp_path, cfg, method_cfg("snapkv"), 64, {0: "one two"})
    for index, lasting in enumerate(permanent, 1):
        more = {"permanent": True} if lasting else {}
        _log(cell, index, error={"type": "ValueError", "message": "no"}, attempt=1, **more)
    (said,) = [sentence for sentence in analysis.score_store(tmp_path) if "samples 1, 2 failed" in sentence]
    assert advice in said


def test_what_was_cut_from_prompts_is_said_of_the_scored_samples(tmp_path):
    cfg = benchmark_cfg("documents_mini")
    cell = fakestore.add(tmp_path, cfg, method_cfg("fullkv"), None, {0: "one two"})
    record = {"text": "one", "tokens": [1], "stopped": "eos", "prompt_length": 400, "seconds": 0.1}
    _log(cell, 1, **record, kept=fakestore.pack_kept([[400, 400], [400, 400]]), fitted={"cut_tokens": 7})
    analysis.score_store(tmp_path)
    scores = json.loads((cell.folder / "scores" / f"{cell.digest}.json").read_text())
    assert any("1 of 2 prompts are longer" in sentence for sentence in scores["warnings"])
