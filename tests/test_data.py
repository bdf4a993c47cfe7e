"""Data folders that hold more, less or other than one set, and rows that cannot be asked."""

from __future__ import annotations

import io
import os
import shutil
from types import SimpleNamespace

import datasets
import fakestore
import minidata
import pytest
from fakestore import benchmark_cfg
from PIL import Image

from kvbench import benchmarks, store
from kvbench.benchmarks import pictures
from kvbench.benchmarks.parquet import known_rows, split_files
from kvbench.benchmarks.usable import flaw
from kvbench.errors import FileGone, Unanswerable, UserError
from kvbench.running.tries import Tries


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))


def files(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict({"a": [1, 2]}).to_parquet(str(path))
    return folder


def found(folder, split):
    return [os.path.relpath(path, folder.resolve()) for path in split_files(folder, split, "docvqa")]


def test_a_replaced_file_with_its_time_stamp_kept_is_read_anew(tmp_path):
    folder = minidata.write(tmp_path, "docqa_mini")
    (file,) = folder.glob("*.parquet")
    old = file.stat()
    before = [sample.text for sample in benchmarks.load(benchmark_cfg("docvqa", folder)).samples()]
    rows = datasets.Dataset.from_parquet(str(file), cache_dir=str(tmp_path / "other"))
    rows.select([3, 2, 1, 0]).to_parquet(str(tmp_path / "new.parquet"))
    shutil.copy(tmp_path / "new.parquet", file)
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert [s.text for s in benchmarks.load(benchmark_cfg("docvqa", folder)).samples()] == before[::-1]


@pytest.mark.parametrize(
    ("names", "split", "wanted"),
    [
        (["validation-00000-of-00002.parquet", "validation-00001-of-00002.parquet"], "validation", [0, 1]),
        (["data/validation-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], "validation", [0]),
        (["test.parquet", "testmini.parquet"], "test", [0]),
        (["hr_bench_4k.parquet", "hr_bench_8k.parquet"], "hrbench_4k", [0]),
        (["default/validation/0000.parquet", "default/train/0000.parquet"], "validation", [0]),
        (["docvqa_validation.parquet", "docvqa_train.parquet"], "validation", [0]),
        (["validation.parquet"], "val", [0]),
        (["0000.parquet", "0001.parquet"], "validation", [0, 1]),
        (["a.parquet"], "", [0]),
    ],
)
def test_the_files_of_a_split(tmp_path, names, split, wanted):
    assert found(files(tmp_path / "d", *names), split) == [names[place] for place in wanted]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["DocVQA/validation.parquet", "InfographicVQA/validation.parquet"], r"several sets.*\(DocVQA, Info"),
        (["DocVQA/0.parquet", "Other/0.parquet"], r"several sets.*\(DocVQA, Other\)"),
        (["train-00000-of-00001.parquet"], "asks the split validation, but .* holds train-00000.* only"),
        (["docvqa_test.parquet"], "holds docvqa_test.parquet only"),
        (["test/0000.parquet"], "holds test/0000.parquet only"),
        (["validation-00000-of-00006.parquet"], "holds 1 of the 6 files validation-"),
        (["validation-00000-of-00001.parquet", "validation-00000-of-00002.parquet"], "several sets"),
        (["validation.parquet", "validation-00000-of-00001.parquet"], "several sets"),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_one_set_is_refused(tmp_path, names, sentence):
    with pytest.raises(UserError, match=sentence):
        split_files(files(tmp_path / "d", *names), "validation", "docvqa")


def test_two_sets_side_by_side_are_refused_by_the_benchmark(tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    minidata.write(folder, "docqa_mini").rename(folder / "DocVQA")
    shutil.copytree(folder / "DocVQA", folder / "InfographicVQA")
    with pytest.raises(UserError, match="DocVQA, InfographicVQA"):
        benchmarks.load(benchmark_cfg("docvqa", folder))
    assert benchmarks.load(benchmark_cfg("docvqa", folder / "DocVQA")).size() == 4


def test_rows_are_counted_from_the_files(tmp_path):
    folder = files(tmp_path / "d", "validation-00000-of-00002.parquet", "validation-00001-of-00002.parquet")
    assert known_rows(folder) == 4
    assert known_rows(files(folder, "test.parquet")) is None and known_rows(tmp_path / "none") is None


def test_an_unreadable_choice_is_drawn_alike_in_two_cells():
    """Whatever the other samples' answers are, and however many there are."""
    benchmark = benchmarks.load(benchmark_cfg("mmmu", "micro"))
    n = benchmark.size()
    unread = dict.fromkeys(range(n), "???")
    cells = {"a": unread, **{f"b{i}": {**unread, i: "B"} for i in range(n)}}
    scores = {name: one.per_sample["mmmu_acc"] for name, one in benchmark.score_cells(cells).items()}
    for i in range(n):
        same = [index for index in range(n) if index != i]
        assert [scores[f"b{i}"][index] for index in same] == [scores["a"][index] for index in same]
    few = benchmark.score({i: "???" for i in (1, 3)}, [1, 3]).per_sample["mmmu_acc"]
    assert dict(few) == {i: scores["a"][i] for i in (1, 3)}


def png(image, **options):
    out = io.BytesIO()
    image.save(out, "PNG", **options)
    return out.getvalue()


def writing(mode):
    """Black bars on a transparent ground."""
    image = Image.new("RGBA", (60, 40), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (10, 10, 50, 20))
    if mode == "LA":
        return image.convert("LA")
    if mode == "P":
        small = Image.new("P", (60, 40), 0)
        small.putpalette([0, 0, 0, 0, 0, 0])
        small.paste(1, (10, 10, 50, 20))
        small.info["transparency"] = 0
        return small
    return image


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode):
    image = pictures.shown(Image.open(io.BytesIO(png(writing(mode))))).convert("RGB")
    assert image.getpixel((1, 1)) == (255, 255, 255) and image.getpixel((30, 15)) == (0, 0, 0)


def test_other_pictures_stay_as_they_are():
    opaque = Image.effect_noise((20, 20), 50).convert("RGB")
    for image in (opaque, opaque.convert("RGBA"), opaque.convert("L"), opaque.convert("CMYK")):
        assert pictures.shown(image) is image


def test_deep_grey_keeps_its_shades():
    image = Image.new("I;16", (4, 4), 257 * 100)
    assert pictures.shown(image).convert("RGB").getpixel((0, 0)) == (100, 100, 100)


def with_pictures(folder, *stored):
    """docqa_mini's rows with these pictures, as bytes."""
    split, rows = minidata.rows("docqa_mini")
    for row, picture in zip(rows, stored, strict=False):
        row["image"] = (
            picture if picture is None or isinstance(picture, dict) else {"bytes": picture, "path": None}
        )
    rows = [{**row, "image": row["image"] if not isinstance(row["image"], Image.Image)
             else {"bytes": png(row["image"]), "path": None}} for row in rows]  # fmt: skip
    features = datasets.Dataset.from_list([{k: v for k, v in rows[0].items() if k != "image"}]).features
    features["image"] = datasets.Image()
    folder.mkdir(exist_ok=True)
    datasets.Dataset.from_list(rows, features=features).to_parquet(str(folder / f"{split}.parquet"))
    return folder


def test_a_task_sees_pictures_on_white(tmp_path):
    folder = with_pictures(tmp_path / "d", png(writing("RGBA")))
    (image,) = benchmarks.load(benchmark_cfg("docvqa", folder)).at([0])[0].images()
    assert image.mode == "RGB" and image.getpixel((1, 1)) == (255, 255, 255)


def asked(folder, *more):
    """`kvbench run` of two methods on docvqa over a folder; exit code."""
    from kvbench import cli

    words = ["benchmark=docvqa", f"benchmark.data={folder}", "budget=32", "benchmark.max_new_tokens=2"]
    return cli.main(
        ["run", "-m", "model=embedded", "method=fullkv,snapkv", *words, f"store={folder}/s", *more]
    )


@pytest.fixture
def real(monkeypatch):
    """The usual cache, where the embedded model's language weights are."""
    monkeypatch.delenv("KVBENCH_CACHE", raising=False)


def test_hopeless_samples_are_said_once_and_left_out_of_all_cells_on_request(tmp_path, capsys, real):
    """A picture cut off, none at all, a null question, no answers: the same samples, whatever the method."""
    from kvbench import cli

    noise = png(Image.effect_noise((90, 60), 50))
    folder = with_pictures(tmp_path / "d", noise, noise[: len(noise) * 2 // 3], None, noise)
    assert asked(folder) == 1
    assert cli.main(["table", f"store={folder}/s"]) == 1
    shown = capsys.readouterr()
    assert (
        "samples 1, 2 failed for good" in shown.out + shown.err
        and "unreadable=exclude" in shown.out + shown.err
    )
    assert asked(folder, "benchmark.unreadable=exclude") == 0
    said = "".join(capsys.readouterr())
    assert "try 1" in said and "try 2" not in said and "has no picture" in said and "cannot be read" in said
    assert asked(folder, "benchmark.unreadable=exclude") == 0
    assert "try 1" not in "".join(capsys.readouterr())
    assert cli.main(["table", f"store={folder}/s"]) == 0
    shown = capsys.readouterr().out
    assert "docvqa: 2 samples left out of all cells, as nothing can answer: 1, 2." in shown
    assert "docvqa: 2 samples" in shown and "missing" not in shown
    assert cli.main(["status", f"store={folder}/s"]) == 0


def narrow(split, rows):
    """A picture more than 200 times as wide as high, which Qwen2-VL's processor refuses."""
    rows[1]["image"] = Image.new("RGB", (2010, 10), "white")


def endless(split, rows):
    rows[1]["question"] = "where? " * 400  # of a byte tokenizer: more tokens than the context holds


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (narrow, "cannot read the sample's pictures (absolute aspect ratio must be smaller than 200"),
        (endless, "new ones exceed the 1500 that qwen2_vl_7b can hold"),
    ],
)
def test_what_a_model_cannot_take_is_one_samples_own_fault(tmp_path, capsys, harm, said):
    """It fails once and for good, the others keep their answers, and leaving it out completes the table."""
    from kvbench import cli

    split, rows = minidata.rows("docqa_mini")
    harm(split, rows)
    folder = tmp_path / "d"
    folder.mkdir()
    datasets.Dataset.from_list(rows).to_parquet(str(folder / f"{split}.parquet"))
    words = ["run", "-m", "model=qwen2_vl_7b", "model.weights=random", "model.dtype=float32", "budget=40"]
    words += ["model.min_pixels=3136", "model.max_pixels=12544", "model.max_length=1500"]
    words += ["benchmark=docvqa", f"benchmark.data={folder}", "benchmark.max_new_tokens=2"]
    words += ["method=fullkv,snapkv", "method.window=8", f"store={tmp_path}/s", "retries=3"]
    assert cli.main(words) == 1
    shown = "".join(capsys.readouterr())
    assert said in shown and "sample 1, try 1" in shown and "try 2" not in shown
    assert "benchmark.unreadable=exclude leaves the sample out" in shown and "Traceback" not in shown
    found = store.load_responses(tmp_path / "s")
    before = found.drop(columns="seconds")
    assert before.groupby("method")["index"].apply(list).to_dict() == {
        "fullkv": [0, 2, 3],
        "snapkv": [0, 2, 3],
    }
    assert cli.main([*words, "benchmark.unreadable=exclude"]) == 0
    assert store.load_responses(tmp_path / "s").drop(columns="seconds").equals(before)
    capsys.readouterr()
    assert cli.main(["table", f"store={tmp_path}/s"]) == 0
    shown = "".join(capsys.readouterr())
    assert "docvqa: 1 sample left out of all cells, as nothing can answer: 1." in shown
    assert "docvqa: 3 samples" in shown and "missing" not in shown and "\u2014" not in shown


def test_rows_without_question_or_answers_are_named(tmp_path):
    split, rows = minidata.rows("docqa_mini")
    rows[1]["question"], rows[2]["answers"], rows[3]["answers"] = None, [], None
    folder = tmp_path / "d"
    folder.mkdir()
    datasets.Dataset.from_list(rows).to_parquet(str(folder / f"{split}.parquet"))
    benchmark = benchmarks.load(benchmark_cfg("docvqa", folder))
    samples = benchmark.samples()
    assert "None" not in samples[1].text and samples[0].images()
    for index, lacks in ((1, "no question"), (2, "no answers"), (3, "no answers")):
        with pytest.raises(Unanswerable, match=rf"sample {index} of docvqa \(10{index}\) has {lacks}"):
            samples[index].images()
    with pytest.raises(UserError, match=r"sample 2 of docvqa \(102\) has no answers.*unreadable=exclude"):
        benchmark.score({0: "a", 2: "b"}, [0, 2])
    assert benchmark.score({0: "answer 0"}, [0]).metrics["anls"] == 1


@pytest.mark.parametrize("task", ["qasper", "trec", "gov_report"])
def test_rows_of_longbench_without_context_question_or_answers_are_named(tmp_path, task):
    from kvbench.benchmarks import micro

    name = f"longbench_{task}"
    (file,) = micro.folder(name).glob("*.parquet")
    rows = datasets.Dataset.from_parquet(str(file), cache_dir=str(tmp_path / "other")).to_list()[:4]
    first = dict(rows[0])
    rows[1]["question"] = rows[1]["context"] = rows[3]["context"] = None
    rows[2]["answers"] = []
    folder = tmp_path / "d"
    folder.mkdir()
    datasets.Dataset.from_list(rows).to_parquet(str(folder / "test.parquet"))
    benchmark = benchmarks.load(benchmark_cfg(name, folder))
    samples = benchmark.samples()
    assert "None" not in samples[1].text + samples[3].text and samples[0].images() == []
    for index, lacks in ((1, "no context and no question"), (2, "no answers"), (3, "no context")):
        with pytest.raises(
            Unanswerable, match=rf"sample {index} of {name} \(.+\) has {lacks}: correct the row"
        ):
            samples[index].images()
    with pytest.raises(UserError, match=rf"sample 2 of {name} .* has no answers.*unreadable=exclude"):
        benchmark.score({0: "a", 2: "b"}, [0, 2])
    assert benchmark.score({0: first["answers"][0]}, [0]).metrics["score"] == pytest.approx(1)
    about = benchmark.clusters(range(4))
    assert about[1] != about[3] and {about[1], about[3]}.isdisjoint({about[0], about[2]})


def test_nan_is_nothing():
    assert flaw("it", {"a": float("nan"), "b": "x", "c": [None, float("nan")]}, "abc") == (
        "it has no a and no c: correct the row."
    )
    assert flaw("it", {"a": "", "b": 0, "c": [""]}, "abc") == ""


def test_a_store_with_an_unscorable_row_keeps_its_other_tables(tmp_path):
    from kvbench import analysis

    split, rows = minidata.rows("docqa_mini")
    rows[2]["answers"] = []
    folder = tmp_path / "d"
    folder.mkdir()
    datasets.Dataset.from_list(rows).to_parquet(str(folder / f"{split}.parquet"))
    store = tmp_path / "s"
    for cfg in (
        benchmark_cfg("docvqa", folder),
        benchmark_cfg("docqa_mini", minidata.write(tmp_path, "docqa_mini")),
    ):
        fakestore.add(store, cfg, fakestore.method_cfg("fullkv"), None, {i: f"answer {i}" for i in range(4)})
    warnings = analysis.score_store(store)
    assert any(
        "docvqa is not scored: sample 2 of docvqa (102) has no answers" in warning for warning in warnings
    )
    assert len(list(store.glob("toy/docqa_mini/scores/*"))) == 1 and not list(
        store.glob("toy/docvqa/scores/*")
    )


def test_videos_that_vanish_are_no_fault_of_a_sample(tmp_path):
    """Real task code over micro data, asked as a run asks it."""
    from kvbench.benchmarks import micro

    videos = tmp_path / "videos"
    shutil.copytree(micro.folder("videomme") / "videos", videos)
    cfg = {**benchmark_cfg("videomme", "micro"), "videos": str(videos)}
    samples = benchmarks.load(cfg).samples()
    assert samples[0].images()
    shutil.rmtree(videos)
    with pytest.raises(FileGone):
        samples[1].images()
    for unreadable in ("stop", "exclude"):
        config = {"seed": 0, "benchmark": {"name": "videomme", "unreadable": unreadable}}
        tries = Tries(SimpleNamespace(config=config), None, {}, None, 0, None, None, "", print)
        with pytest.raises(UserError, match="the data of benchmark videomme vanished at sample 1"):
            tries._try(samples[1], samples[1].images, [None])


def test_one_video_that_is_missing_can_be_left_out(tmp_path):
    from kvbench.benchmarks import micro

    videos = tmp_path / "videos"
    shutil.copytree(micro.folder("videomme") / "videos", videos)
    cfg = {**benchmark_cfg("videomme", "micro"), "videos": str(videos)}
    benchmark = benchmarks.load(cfg)
    sample = benchmark.samples()[1]
    (videos / f"{benchmark.task.eval_docs[sample.index]['videoID']}.mp4").unlink()
    config = {"seed": 0, "benchmark": {"name": "videomme", "unreadable": "exclude"}}
    tries = Tries(SimpleNamespace(config=config), None, {}, None, 0, None, None, "", print)
    (found,) = tries._try(sample, sample.images, [None])
    assert isinstance(found, Unanswerable) and "is missing" in str(found)


def test_rows_without_picture_are_about_nothing_another_is_about(tmp_path):
    split, rows = minidata.rows("chartqa_mini")
    for row in rows[1:]:
        row["image"] = None
    folder = tmp_path / "d"
    folder.mkdir()
    datasets.Dataset.from_list(rows).to_parquet(str(folder / f"{split}.parquet"))
    assert len(set(benchmarks.load(benchmark_cfg("chartqa", folder)).clusters(range(4)).values())) == 4


def test_a_plan_of_more_than_there_is_counts_what_there_is(tmp_path, capsys):
    from kvbench import cli

    folder = minidata.write(tmp_path, "docqa_mini")
    words = ["benchmark=docvqa", "method=fullkv", "limit=100000", f"store={tmp_path}/s"]
    assert cli.main(["plan", *words, f"benchmark.data={folder}"]) == 0
    shown = capsys.readouterr().out
    assert "100000" not in shown and " 4 " in shown and "at most" not in shown
    assert cli.main(["plan", *words]) == 0
    shown = capsys.readouterr().out
    assert "100000" in shown and "at most" in shown
