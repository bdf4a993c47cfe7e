"""What prompts show: every quantity against brute force, the command from config to figures, bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from test_claims import probabilities
from test_table import put

import kvbench
from kvbench import cli
from kvbench.analysis import figures
from kvbench.analysis.figures import observed, overlay
from kvbench.engine.generate import observe
from kvbench.engine.prefill import Prefill
from kvbench.errors import UserError
from kvbench.observations import BUDGET, LAST, QUANTILES, evidence, keys, pages, stored
from kvbench.observations.recent import METHODS, recent
from kvbench.running import observe as observing
from kvbench.running import run
from kvbench.store import retained, write_atomic

LAYERS, HEADS, GROUP, FIRST, TILES, TEXT = 4, 2, 3, 3, 60, 20
LENGTH = FIRST + TILES + TEXT


@pytest.fixture(scope="module")
def prompt():
    """A prompt of 3 tokens, 60 tiles and 20 tokens of text."""
    made = torch.Generator().manual_seed(5)
    visual = torch.zeros(LENGTH, dtype=torch.bool)
    visual[FIRST : FIRST + TILES] = True
    return Prefill(
        key_stack=torch.randn(LAYERS, HEADS, LENGTH, 8, generator=made) + 0.5,
        value_stack=torch.randn(LAYERS, HEADS, LENGTH, 8, generator=made),
        window_queries=torch.randn(LAYERS, HEADS * GROUP, TEXT, 8, generator=made),
        logits=torch.zeros(5),
        length=LENGTH,
        next_position=LENGTH,
        visual_mask=visual,
    )


MARKED = (4, 5, 7, 30, 31)


@pytest.fixture(scope="module")
def found(prompt):
    tiles = prompt.visual_mask.nonzero().flatten()
    return evidence.looks(observe(prompt), tiles, tiles[list(MARKED)], window=8)


@pytest.fixture(scope="module")
def rows(prompt):
    return probabilities(prompt)  # [layers, query heads, TEXT, N]


class TestEvidence:
    def strongest(self, scores, count):
        return set(scores.argsort(descending=True)[:count].tolist())

    def test_every_query_is_told_apart(self, found, rows):
        places = [FIRST + tile for tile in MARKED]
        assert len(found["attended"]) == len(found["captured"]) == TEXT
        for query in range(TEXT):
            mass = rows[:, :, query, places].sum(-1).mean()
            assert found["attended"][query] == pytest.approx(100 * float(mass), rel=1e-4)
            hits = 0
            for layer in range(LAYERS):
                for head in range(HEADS):
                    mean = rows[layer, GROUP * head : GROUP * (head + 1), query, FIRST : FIRST + TILES].mean(
                        0
                    )
                    hits += len(self.strongest(mean, 5) & set(MARKED))
            assert found["captured"][query] == pytest.approx(hits / (LAYERS * HEADS * 5))

    def test_last_query_and_window_by_layer(self, found, rows):
        for layer in range(LAYERS):
            last = window = 0
            for head in range(HEADS):
                mine = rows[layer, GROUP * head : GROUP * (head + 1), :, FIRST : FIRST + TILES].mean(0)
                last += len(self.strongest(mine[-1], 5) & set(MARKED))
                window += len(self.strongest(mine[-8:].mean(0), 5) & set(MARKED))
            assert found["captured_last"][layer] == pytest.approx(last / (HEADS * 5))
            assert found["captured_window"][layer] == pytest.approx(window / (HEADS * 5))

    def test_structure_by_layer(self, found, rows):
        strong = [
            self.strongest(rows[layer, :, -1, FIRST : FIRST + TILES].mean(0), 16) for layer in range(LAYERS)
        ]
        for kind, wanted in (("evidence", True), ("noise", False)):
            for layer in range(LAYERS):
                mine = [tile for tile in strong[layer] if (tile in MARKED) == wanted]
                near = []
                for tile in mine:
                    around = [u for u in range(max(0, tile - 5), min(TILES, tile + 6)) if u != tile]
                    near.append(sum(u in strong[layer] for u in around) / len(around))
                assert found[f"coherence_{kind}"][layer] == (
                    pytest.approx(sum(near) / len(near), rel=1e-5) if near else None
                )
                if layer + 1 < LAYERS:
                    stays = [tile in strong[layer + 1] for tile in mine]
                    assert found[f"persistence_{kind}"][layer] == (
                        pytest.approx(sum(stays) / len(stays)) if stays else None
                    )

    def test_only_the_last_queries_of_a_long_question(self, prompt, monkeypatch, found):
        monkeypatch.setattr(evidence, "QUERIES", 6)
        tiles = prompt.visual_mask.nonzero().flatten()
        fewer = evidence.looks(observe(prompt), tiles, tiles[list(MARKED)], window=4)
        assert fewer["attended"] == pytest.approx(found["attended"][-6:], rel=1e-5)

    def test_by_layer_has_none_where_nothing_is(self):
        values, these = (
            torch.tensor([[1.0, 2, 3], [4, 5, 6]]),
            torch.tensor([[True, False, True], [False] * 3]),
        )
        assert evidence.by_layer(values, these) == [2.0, None]


class TestKeys:
    def test_what_lies_behind_the_weight(self, prompt):
        found = keys.geometry(observe(prompt))
        for layer in range(LAYERS):
            spread, distances, cosines = [], [], []
            for head in range(HEADS):
                mine = prompt.key_stack[layer, head].double().numpy()
                away = np.linalg.norm(mine[:-4] - mine.mean(0), axis=1)  # the score's window is 4
                spread.append(2 - 2 / (1 + np.exp(-away.mean() / 8**0.5)))
                distances += away.tolist()
                unit = mine / np.linalg.norm(mine, axis=1, keepdims=True)
                cosines += (unit @ unit.T).mean(1)[:-4].tolist()
            assert found["spread"][layer] == pytest.approx(np.mean(spread), rel=1e-5)
            assert found["distance"][layer] == pytest.approx(np.mean(distances), rel=1e-5)
            assert found["cosines"][layer] == pytest.approx(np.quantile(cosines, QUANTILES), abs=1e-5)

    def test_the_weight_mixes_both_redundancies(self, prompt):
        """λ = β r_E + (1 - β) r_C with β = 0.6, where no head is clamped."""
        observation = observe(prompt)
        both, parts = keys.keys(observation), keys.geometry(observation)
        mixed = [0.6 * e + 0.4 * c for e, c in zip(parts["spread"], both["cosine"], strict=True)]
        assert both["weight"] == pytest.approx(mixed, rel=1e-5)

    def test_components_are_those_of_the_covariance(self):
        points = torch.randn(50, 6, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 7)
        found, explained = keys.components(points)
        values, axes = np.linalg.eigh(np.cov(points.double().numpy().T))
        assert explained.tolist() == pytest.approx((values[::-1][:2] / values.sum()).tolist())
        wanted = (points - points.mean(0)).double().numpy() @ axes[:, ::-1][:, :2]
        assert np.abs(found.numpy()) == pytest.approx(np.abs(wanted), rel=1e-3, abs=1e-4)

    def test_components_keep_distances_of_a_plane_and_have_one_sign(self):
        plane = torch.tensor([[0.0, 0, 1], [3, 0, 1], [0, 1, 1], [5, 2, 1]])
        found, explained = keys.components(plane)
        assert torch.cdist(found, found).numpy() == pytest.approx(torch.cdist(plane, plane).numpy(), abs=1e-4)
        assert float(explained.sum()) == pytest.approx(1)
        assert float(found[3, 0]) > 0  # the largest loading is positive

    def test_projection_marks_visual_tokens(self, prompt):
        found = keys.projection(observe(prompt))
        assert sum(found["visual"]) == TILES and np.array(found["points"]).shape == (HEADS, LENGTH, 2)


class TestRecent:
    def test_equals_the_selection(self, prompt):
        found = recent(observe(prompt))
        assert set(found) == set(METHODS)
        for method, rates in found.items():
            kept = kvbench.select(
                prompt.key_stack,
                prompt.value_stack,
                prompt.window_queries,
                method=method,
                budget=BUDGET,
                window=1,
            )
            heads = [set(head.tolist()) for layer in kept for head in layer]
            wanted = [np.mean([place in head for head in heads]) for place in range(LENGTH - LAST, LENGTH)]
            assert rates == pytest.approx(wanted) and rates[-1] == 1

    def test_window_attention_by_brute_force(self, prompt):
        last = probabilities(prompt)[:, :, -1]
        counts = np.zeros(LENGTH)
        for layer in range(LAYERS):
            for head in range(HEADS):
                mean = last[layer, GROUP * head : GROUP * (head + 1), :-1].mean(0).numpy()
                pooled = np.convolve(mean, np.ones(5) / 5, mode="same")
                counts[np.argsort(-pooled, kind="stable")[: BUDGET - 1]] += 1
        found = recent(observe(prompt))["snapkv"]
        assert found[:-1] == pytest.approx((counts[-LAST:-1] / (LAYERS * HEADS)).tolist())

    def test_a_prompt_that_fits_the_budget_is_refused(self, prompt):
        short = Prefill(
            **{
                **vars(prompt),
                "key_stack": prompt.key_stack[:, :, :31],
                "value_stack": prompt.value_stack[:, :, :31],
            }
        )
        with pytest.raises(UserError, match="31 tokens fits the budget of 64"):
            recent(observe(short))


class TestDrawing:
    def test_matrix_aligns_the_ends(self):
        rows = [{"x": [1, 2, 3]}, {"x": [5, None]}]
        found = observed.matrix(rows, lambda one: one["x"])
        assert np.array_equal(found, [[1, 2, 3], [np.nan, 5, np.nan]], equal_nan=True)

    def test_smoothing_by_hand(self):
        assert observed.smooth(np.array([[0.0, 3, 6, 0]])).tolist() == [[1.5, 3, 3, 3]]

    def test_a_line_is_the_mean_of_what_is_there(self):
        from matplotlib.figure import Figure

        panel = Figure().subplots()
        nan = np.nan  # too few have the last column
        values = np.array([[1.0, nan, 5], [2, 4, nan], [3, 5, nan], [3, 6, nan], [4, 7, nan], [5, 8, nan]])
        observed.line(panel, [7, 8, 9], values, list("abcdef"), "red")
        (drawn,) = panel.lines
        assert drawn.get_xydata()[:2].tolist() == [[7, 3], [8, 6]] and np.isnan(drawn.get_ydata()[2])
        (band,) = panel.collections
        low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()
        assert 1 <= low < 3 and 6 < high <= 8  # of five prompts as of six

    def test_shares_of_the_first_picture(self):
        import base64

        text = base64.b64encode(bytes([0, 51, 255, 0, 0, 255, 9, 9])).decode()
        found = overlay.shares(text, {"rows": 2, "columns": 3})
        assert found.tolist() == [[0, 0.2, 1], [0, 0, 1]]


def test_retained_tokens_lie_over_the_pages(tmp_path):
    import base64

    cells = [put(tmp_path, "docqa_mini", method, 64, [1.0]) for method in ("snapkv", "snapkv+bacon")]
    page = pages.pages("docqa_mini")[0]
    shape = {"rows": page["rows"], "columns": page["columns"], "width": 1.0, "height": 1.0}
    tokens = [bytes([level] * (page["rows"] * page["columns"])) for level in (51, 255)]
    found = {cell.digest: base64.b64encode(text).decode() for cell, text in zip(cells, tokens, strict=True)}
    document = {"index": 0, "grids": [shape], "cells": found}
    write_atomic(retained.file_of(cells[0].folder, 0), json.dumps(document))
    ((name, figure),) = overlay.figures(tmp_path)
    assert name == "retained-toy-docqa_mini"
    labels = [(panel.get_ylabel(), panel.get_xlabel()) for panel in figure.axes]
    assert labels == [("snapkv, 64", "mean 20.0%, most 20%"), ("snapkv+bacon, 64", "mean 100.0%, most 100%")]
    strength = [panel.images[1].get_array()[..., 3].max() for panel in figure.axes]
    assert strength == pytest.approx([0.2 * overlay.STRONG, overlay.STRONG])  # one scale for both
    assert any(path.name == f"{name}.png" for path in figures.write(tmp_path, tmp_path / "out", ["png"]))


COMMAND = ["observe", "model=embedded", "benchmark=docqa_mini", "limit=2"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    assert cli.main([*COMMAND, f"store={folder}"]) == 0
    return folder


@pytest.fixture
def no_model(monkeypatch):
    monkeypatch.setattr(run, "load_model", lambda config: pytest.fail("the model was loaded"))


TAKEN, NEXT = "55", "51"  # of docqa_mini, in the order in which limits take them


class TestCommand:
    def document(self, store, name="docqa_mini", model="embedded"):
        return json.loads((store / "observations" / model / f"{name}.json").read_text())

    def test_stores_every_quantity(self, store):
        samples = self.document(store)["samples"]
        assert set(samples) == {TAKEN, NEXT}
        assert "projection" in samples[TAKEN] and "projection" not in samples[NEXT]
        for values in samples.values():
            for name in ("cosine", "weight", "correlation", "spread", "distance", "cosines", "captured_last"):
                assert len(values[name]) == 30
            assert len(values["persistence_noise"]) == 29 and len(values["attended"]) == len(
                values["captured"]
            )

    def test_agrees_with_the_claims(self, store):
        from kvbench.claims.measured import of_samples
        from kvbench.planning.parsing import resolved

        configs = resolved(["model=embedded", "benchmark=docqa_mini"])
        adapter = run.load_model(configs["model"][0])
        ((_, theirs),) = of_samples(adapter, configs["benchmark"][0], [int(NEXT)])
        ours = self.document(store)["samples"][NEXT]
        assert 1 - np.mean(ours["captured_last"]) == pytest.approx(theirs["noise"], abs=1e-6)
        assert ours["attended"][-1] == pytest.approx(theirs["evidence_last"], rel=1e-4)
        for name in ("cosine", "weight", "correlation"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-6)

    def test_the_second_call_loads_nothing(self, store, no_model, capsys, monkeypatch):
        monkeypatch.setattr(run, "load_benchmark", lambda config: pytest.fail("the benchmark was loaded"))
        assert cli.main([*COMMAND, f"store={store}"]) == 0
        assert capsys.readouterr().err.splitlines() == ["embedded / docqa_mini: 2 prompts observed"]

    def test_plan_counts_what_is_missing(self, store, no_model, capsys):
        assert cli.main(["plan", "observe=true", *COMMAND[1:3], "limit=5", f"store={store}"]) == 0
        row = next(line for line in capsys.readouterr().out.splitlines() if "docqa_mini" in line)
        assert row.replace("│", " ").split()[-3:] == ["5", "2", "3"]

    def test_another_definition_or_model_starts_anew(self, store, monkeypatch):
        from kvbench.planning import plan

        overrides = ["observe=true", *COMMAND[1:], f"store={store}"]
        (job,) = plan.jobs(overrides)
        assert stored.missing(job, 2) == 0
        for changed in ("model.dtype=bfloat16", "benchmark.revision=other"):
            (other,) = plan.jobs([*overrides, changed])
            assert stored.missing(other, 2) == 2
        monkeypatch.setattr(stored, "VERSION", 99)
        assert stored.missing(job, 2) == 2

    def test_figures_are_drawn_without_answers(self, store, no_model, tmp_path):
        assert cli.main(["figures", f"store={store}", "--out", str(tmp_path), "--formats", "svg,png"]) == 0
        drawn = {path.name for path in tmp_path.iterdir()}
        names = (
            "key-similarity",
            "diversity-weight",
            "correlation",
            "recent-positions",
            "keys-2d-docqa_mini",
            "evidence-by-query",
            "evidence-by-layer",
            "coherence-persistence",
        )
        assert drawn == {f"{name}-embedded.{suffix}" for name in names for suffix in ("svg", "png")}
        for name, figure in figures.draw(store).items():
            assert all(panel.lines or panel.collections for panel in figure.axes), name

    def test_a_stopped_call_keeps_what_is_done(self, store, tmp_path):
        file = tmp_path / "x.json"
        values = self.document(store)["samples"][TAKEN]

        def stops():
            yield 0, values
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            stored.fill(file, {}, stops())
        assert set(stored.read(file)["samples"]) == {"0"}

    def test_evidence_tokens_of_the_embedded_model_are_the_tiles(self):
        from kvbench.models.embedded import EmbeddedAdapter

        page = {"evidence": {"label": [3, 4], "value": [17]}, "columns": 6}
        assert pages.evidence(EmbeddedAdapter.__new__(EmbeddedAdapter), page, (6 * 48, 5 * 24)) == [3, 4, 17]


SMALL = ["model.weights=random", "model.size=toy", "model.dtype=float32", "model.device=cpu"]
TOY = ["model=qwen2_vl_7b", *SMALL]
TEXT_ONLY = ["model=llama31_8b_instruct", "model.max_length=8192", *SMALL]


class TestAnyModel:
    def test_a_family_at_toy_size_sees_the_evidence_too(self, tmp_path):
        assert cli.main(["observe", *TOY, "benchmark=docqa_mini", "limit=1", f"store={tmp_path}"]) == 0
        document = json.loads((tmp_path / "observations/qwen2_vl_7b/docqa_mini.json").read_text())
        assert (
            len(document["samples"][TAKEN]["captured_last"]) == len(document["samples"][TAKEN]["cosine"]) == 4
        )
        assert figures.write(tmp_path, tmp_path / "out", ["svg"])

    def test_text_has_keys_and_no_evidence(self, tmp_path, capsys):
        words = ["benchmark=longbench_hotpotqa", "benchmark.data=micro", "limit=1", f"store={tmp_path}"]
        assert cli.main(["observe", *TEXT_ONLY, *words]) == 0
        assert f"1 prompt observed; {observing.UNKNOWN}" in capsys.readouterr().err
        names = {name.removesuffix("-llama31_8b_instruct") for name in figures.draw(tmp_path)}
        assert "correlation" in names and not any("evidence" in name for name in names)

    def test_a_model_without_eyes_says_so(self, tmp_path, capsys):
        assert cli.main(["observe", *TEXT_ONLY, "benchmark=docqa_mini", "limit=1", f"store={tmp_path}"]) == 2
        assert f"sample {TAKEN} of docqa_mini cannot be observed: model llama31_8b_instruct reads text" in (
            capsys.readouterr().err
        )

    def test_other_data_say_that_evidence_is_not_known(self, tmp_path, capsys):
        words = ["benchmark=chartqa", "benchmark.data=micro", "limit=2", f"store={tmp_path}"]
        assert cli.main(["observe", *TOY, *words]) == 0
        assert f"2 prompts observed; {observing.UNKNOWN}" in capsys.readouterr().err
        assert not any("evidence" in name for name in figures.draw(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model=embeded"], "embedded"),
        (["benchmark=docqa"], "docqa_mini"),
        (["method=snapkv"], "nothing is compressed here"),
        (["budget=64"], "nothing is compressed here"),
        (["limit=0"], "limit"),
        (["shards=2"], "leave launcher= and shards= out"),
        (["launcher=slurm"], "leave launcher= and shards= out"),
        (["prompt=v1"], "leave prompt= out"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, no_model, capsys, words, said):
    assert cli.main([*COMMAND[:3], *words, f"store={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_a_sample_that_cannot_be_observed_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("kvbench.observations.recent.BUDGET", 5000)
    assert cli.main([*COMMAND, f"store={tmp_path}"]) == 2
    assert f"sample {TAKEN} of docqa_mini cannot be observed: a prompt of" in capsys.readouterr().err
