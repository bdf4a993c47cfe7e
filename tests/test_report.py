"""The page holds what the store holds, as text, and fetches nothing; a browser sorts and filters it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import warnings
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import fakestore
import manysamples
import minidata
import pytest
from fakestore import benchmark_cfg, method_cfg

from kvbench import analysis, cli, report
from kvbench.store import retained, write_atomic

PAGE = Path(report.__file__).parent / "page"
EVIL = "<script>alert('x')</script> & \"quoted\" </script>"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Three methods on four questions; one answer would be markup if anything forgot to escape it."""
    folder = tmp_path_factory.mktemp("sets")
    patch = pytest.MonkeyPatch()
    patch.setenv("KVBENCH_CACHE", str(folder / "cache"))
    root = tmp_path_factory.mktemp("runs") / "a<b>"
    cfg = benchmark_cfg("docqa_mini", minidata.write(folder, "docqa_mini"))
    full = {i: f"answer {i}" for i in range(4)}
    fakestore.add(root, cfg, method_cfg("fullkv"), None, full)
    cell = fakestore.add(root, cfg, method_cfg("snapkv"), 64, {**full, 1: EVIL, 2: "another answer 2"})
    fakestore.add(root, cfg, method_cfg("snapkv+bacon"), 64, full)
    analysis.score_store(root)
    shares = base64.b64encode(bytes([255, 0, 128, 64])).decode()
    grid = {"rows": 2, "columns": 2, "width": 1.0, "height": 1.0}
    document = {"index": 1, "grids": [grid], "cells": {cell.digest: shares}}
    write_atomic(retained.file_of(cell.folder, 1), json.dumps(document))
    yield root
    patch.undo()


@pytest.fixture(scope="module")
def page(store):
    out = store / "report.html"
    assert report.write([store], out, report.Options(), ["Mind the <gap>."])
    return out


class Reader(HTMLParser):
    """Tags, their attributes, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[tuple[dict, str]] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script" and self.scripts:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data


def read(page):
    reader = Reader()
    reader.feed(page.read_text("utf-8"))
    return reader


def pictures(page):
    """Data URIs by digest."""
    found = [(kind.get("id") or "", body) for kind, body in read(page).scripts]
    return {name.removeprefix("picture-"): body for name, body in found if name.startswith("picture-")}


def test_nothing_is_fetched(page):
    for tag, attributes in read(page).tags:
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
            link = attributes.get(name) or "#"
            assert link.startswith(("#", "data:")), (tag, name, link)
    assert not re.search(r"@import|url\((?!#)", page.read_text("utf-8"))


def test_what_the_store_holds_stays_text(page):
    text = page.read_text("utf-8")
    assert "<script>alert" not in text and "Mind the &lt;gap&gt;." in text and "a&lt;b&gt;" in text
    data = next(json.loads(body) for kind, body in read(page).scripts if kind.get("class") == "data")
    assert EVIL in data["samples"][1]["t"]


def test_the_samples_hold_question_answers_scores_and_overlay(page):
    data = next(json.loads(body) for kind, body in read(page).scripts if kind.get("class") == "data")
    assert [cell["label"] for cell in data["cells"]] == ["fullkv", "snapkv · 64", "snapkv+bacon · 64"]
    first, second = data["samples"][:2]
    assert (first["t"], first["w"], first["s"]) == (["answer 0"], [0, 0, 0], [1.0, 1.0, 1.0])
    assert second["q"] and "answer 1" in [given.lower() for given in second["r"]]
    assert "k" not in first and list(base64.b64decode(second["k"][1])) == [255, 0, 128, 64]
    stored = pictures(page)
    assert len(stored) == 4 and all(uri.startswith("data:image/jpeg") for uri in stored.values())
    assert [sample["p"] for sample in data["samples"]] == [[digest] for digest in stored]


def test_a_second_call_leaves_the_page_alone_and_a_new_answer_does_not(store, page):
    assert not report.write([store], page, report.Options(), ["Mind the <gap>."])
    assert report.write([store], page, report.Options(images=1), ["Mind the <gap>."])
    assert len(pictures(page)) == 1
    assert report.write([store], page, report.Options(), ["Mind the <gap>."])


def test_a_clip_is_shown_by_three_of_its_frames(tmp_path):
    cfg = benchmark_cfg("videomme", "micro")
    fakestore.add(tmp_path, cfg, method_cfg("fullkv"), None, {0: "A", 1: "B"})
    assert cli.main(["report", str(tmp_path)]) == 0
    (data,) = [json.loads(body) for kind, body in read(tmp_path / "report.html").scripts
               if kind.get("class") == "data"]  # fmt: skip
    assert [len(sample["p"]) for sample in data["samples"]] == [3, 3]


def test_bad_input(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "none")]) == 2
    assert cli.main(["report", str(tmp_path)]) == 2
    assert cli.main(["report", str(tmp_path), "--images", "-1"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "kvbench run" in errors[0] and "store=DIR" in errors[1] and "--images" in errors[2]


def test_the_page_hangs_together(page):
    """What a browser would stumble on, without one: places that links, labels and the script look for."""
    tags, source = read(page).tags, page.read_text("utf-8")
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"][1:] for tag, attributes in tags if tag == "a"]
    assert len(targets) > 4 and set(targets) <= set(ids)
    classes = {name for _, attributes in tags for name in (attributes.get("class") or "").split()}
    script = (PAGE / "report.js").read_text("utf-8")
    made = set(re.findall(r'class: "([\w -]+)"', script)) | {"list"}
    sought = set(re.findall(r'(?:this\.find|querySelector(?:All)?)\("(?:\w+)?\.(\w+)', script))
    assert len(sought) > 6 and sought <= classes | made, sought - classes - made
    style = (PAGE / "report.css").read_text("utf-8")
    assert "prefers-color-scheme: dark" in style and style.count("{") == style.count("}")
    assert set(re.findall(r"var\((--\w+)\)", style)) <= set(re.findall(r"(--\w+):", style))
    for tag, attributes in tags:
        assert tag != "select" or attributes.get("class") == "order", "inside its label"
        assert tag not in ("img", "canvas") and not any(name.startswith("on") for name in attributes)
    assert source.count("<script") == source.count("</script>") and "default-src 'none'" in source


@contextmanager
def opened(page, **options):
    """The page in headless Chromium: a tab, and what its console said and it fetched.

    None where the machine has no Chromium: then the page is tested as text alone, and pytest says so.
    """
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as driver:
        own = Path(driver.chromium.executable_path)
        program = next(filter(None, map(shutil.which, names)), str(own) if own.is_file() else None)
        if program is None:
            warnings.warn("no Chromium here: the page is checked as text alone", stacklevel=1)
            yield None, [], []
            return
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900}, **options)
        troubles, fetched = [], []
        tab.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("dialog", lambda dialog: troubles.append(dialog.message))
        tab.on("request", lambda request: fetched.append(request.url))
        tab.goto(page.as_uri())
        yield tab, troubles, fetched
        browser.close()


def test_in_a_browser(page):
    with opened(page, color_scheme="dark") as (tab, troubles, fetched):
        if tab is None:
            return
        heading = tab.locator("table.results thead button").nth(1)
        names = tab.locator("table.results tbody th")
        heading.click()
        assert names.all_inner_texts()[-1] == "snapkv"  # the lowest value
        heading.press("Enter")
        assert names.all_inner_texts()[0] == "snapkv"
        ink, paper = (tab.evaluate(f"getComputedStyle(document.body).{name}") for name in COLOURS)
        assert (
            sum(map(int, re.findall(r"\d+", ink)[:3]))
            > 600
            > 200
            > sum(map(int, re.findall(r"\d+", paper)[:3]))
        )

        tab.locator(".browser").scroll_into_view_if_needed()
        rows = tab.locator(".list button")
        rows.nth(3).wait_for()
        tab.locator(".filter").fill("ALERT('X')")
        assert rows.count() == 1
        tab.locator(".filter").fill("")
        tab.locator(".only").check()
        assert tab.locator(".count").inner_text() == "2 of 4 samples"
        tab.locator(".list button").first.focus()
        tab.keyboard.press("Enter")
        assert "Sample 1" in tab.locator(".detail h4").inner_text()
        answers = tab.locator(".answers tr", has_text="snapkv · 64")
        assert EVIL.split()[0] in answers.locator("ins").first.inner_text()
        assert "answer 1" in answers.locator("del").inner_text()
        assert tab.locator(".detail canvas").first.evaluate("c => c.width") == 16
        tab.keyboard.press("ArrowDown")
        ins = tab.locator(".answers tr", has_text="snapkv · 64").locator("ins")
        assert [text.strip() for text in ins.all_inner_texts()] == ["another"]
        assert "kvbench report overlays=4" in tab.locator(".overlay-note").inner_text()
        tab.keyboard.press("k")
        assert "Sample 1" in tab.locator(".detail h4").inner_text()
        tab.keyboard.press("j")
        tab.locator(".detail").focus()
        tab.keyboard.press("Escape")
        assert tab.evaluate("document.activeElement.getAttribute('aria-current')") == "true"
        tab.keyboard.press("/")
        assert tab.evaluate("document.activeElement.className") == "filter"
        assert troubles == [] and [url for url in fetched if not url.startswith("data:")] == [page.as_uri()]


COLOURS = ("color", "backgroundColor")


def test_a_thousand_samples(tmp_path):
    """All of them are listed, filtered and opened, and a page that five questions share is stored once."""
    data = manysamples.questions(tmp_path / "sets", 1000, (24, 32), per_page=5)
    manysamples.fill(tmp_path / "store", data, 1000, 3)
    page = tmp_path / "report.html"
    report.write([tmp_path / "store"], page, report.Options(images=1000))
    held = next(json.loads(body) for kind, body in read(page).scripts if kind.get("class") == "data")
    assert len(held["samples"]) == 1000 and len(pictures(page)) == 200
    assert held["samples"][0]["p"] == held["samples"][4]["p"] != held["samples"][5]["p"]
    with opened(page) as (tab, troubles, _):
        if tab is None:
            return
        tab.locator(".browser").scroll_into_view_if_needed()
        rows = tab.locator(".list button")
        rows.nth(999).wait_for(state="attached")
        assert tab.locator(".count").inner_text() == "1000 of 1000 samples"
        tab.locator(".filter").fill("line 77?")
        assert rows.count() == 1
        tab.locator(".filter").fill("")
        tab.locator(".order").select_option("loss")
        wrong = [max(sample["s"]) - min(sample["s"]) for sample in held["samples"]]
        rows.nth(int(sum(wrong)) - 1).click()
        assert "0" in tab.locator(".answers td.score").all_inner_texts()
        tab.keyboard.press("ArrowDown")  # the next one lost nothing
        assert "0" not in tab.locator(".answers td.score").all_inner_texts()
        tab.locator(".order").select_option("index")
        rows.nth(999).click()
        assert "Sample 999" in tab.locator(".detail h4").inner_text()
        assert (
            tab.locator(".detail img").first.evaluate(
                "picture => picture.decode().then(() => picture.naturalWidth)"
            )
            == 24
        )
        assert troubles == []
