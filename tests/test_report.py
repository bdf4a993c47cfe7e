"""The page holds what the store holds, as text, and fetches nothing; a browser sorts and filters it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from html.parser import HTMLParser

import fakestore
import minidata
import pytest
from fakestore import benchmark_cfg, method_cfg

from kvbench import analysis, cli, report, retained
from kvbench.store import write_atomic

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
    pictures = [body for kind, body in read(page).scripts if "data-picture" in kind]
    assert len(pictures) == 4 and all(json.loads(p)[0].startswith("data:image/jpeg") for p in pictures)


def test_a_second_call_leaves_the_page_alone_and_a_new_answer_does_not(store, page):
    assert not report.write([store], page, report.Options(), ["Mind the <gap>."])
    assert report.write([store], page, report.Options(images=1), ["Mind the <gap>."])
    assert sum("data-picture" in kind for kind, _ in read(page).scripts) == 1
    assert report.write([store], page, report.Options(), ["Mind the <gap>."])


def test_bad_input(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "none")]) == 2
    assert cli.main(["report", str(tmp_path)]) == 2
    assert cli.main(["report", str(tmp_path), "--images", "-1"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "kvbench run" in errors[0] and "store=DIR" in errors[1] and "--images" in errors[2]


def chromium():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine: the page is tested without one")
def test_in_a_browser(page):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="dark")
        troubles, fetched = [], []
        tab.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("dialog", lambda dialog: troubles.append(dialog.message))
        tab.on("request", lambda request: fetched.append(request.url))
        tab.goto(page.as_uri())

        heading = tab.locator("table.results thead button").nth(1)
        names = tab.locator("table.results tbody th")
        heading.click()
        assert names.all_inner_texts()[-1] == "snapkv"  # the lowest value
        heading.click()
        assert names.all_inner_texts()[0] == "snapkv"

        tab.locator(".browser").scroll_into_view_if_needed()
        rows = tab.locator(".list button")
        rows.nth(3).wait_for()
        tab.locator(".filter").fill("ALERT('X')")
        assert rows.count() == 1
        tab.locator(".filter").fill("")
        tab.locator(".only").check()
        assert tab.locator(".count").inner_text() == "2 of 4 samples"
        tab.locator(".list button").first.focus()
        tab.keyboard.press("j")
        assert "Sample 1" in tab.locator(".detail h4").inner_text()
        answers = tab.locator(".answers tr", has_text="snapkv · 64")
        assert EVIL.split()[0] in answers.locator("ins").first.inner_text()
        assert "answer 1" in answers.locator("del").inner_text()
        assert tab.locator(".detail canvas").first.evaluate("c => c.width") == 16
        tab.keyboard.press("ArrowDown")
        ins = tab.locator(".answers tr", has_text="snapkv · 64").locator("ins")
        assert [text.strip() for text in ins.all_inner_texts()] == ["another"]
        assert "kvbench retained" in tab.locator(".overlay-note").inner_text()
        tab.keyboard.press("Escape")
        assert tab.evaluate("document.activeElement.getAttribute('aria-current')") == "true"
        browser.close()
    assert troubles == [] and fetched == [page.as_uri()] + [u for u in fetched[1:] if u.startswith("data:")]
