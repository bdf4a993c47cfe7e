"""How fast `kvbench report` and its page are on many samples: prints times, fails at nothing.

    python scripts/report_timing.py [--samples 1000] [--cells 40] [--images 200] [--out FOLDER]

Fills a temporary store with made-up answers, writes the page and opens it in headless Chromium; with --out
the page and two screenshots (light and dark) stay there. Needs the packages of `pip install -e ".[dev]"`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import manysamples  # noqa: E402

from kvbench import report  # noqa: E402

# In the page: milliseconds until what an action changed is drawn.
TIMED = """async () => {
  const start = performance.now();
  %s;
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""
TYPE = """(() => {{ const field = document.querySelector("{field}"); field.value = "{text}";
  field.dispatchEvent(new Event("input", {{bubbles: true}})); }})()"""
KEY = """document.querySelector(".list button").dispatchEvent(
  new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true}))"""
ORDER = """(() => { const order = document.querySelector(".order"); order.value = "loss";
  order.dispatchEvent(new Event("change", {bubbles: true})); })()"""
ACTIONS = {
    "sort the table": 'document.querySelector("table.results thead button").click()',
    "sort all metrics": 'document.querySelector("table.tidy thead button").click()',
    "filter all metrics": TYPE.format(field=".rowfilter", text="bacon"),
    "order the samples by loss": ORDER,
    "filter the samples": TYPE.format(field=".filter", text="line 7"),
    "clear the filter": TYPE.format(field=".filter", text=""),
    "open a sample": 'document.querySelector(".list button").click()',
    "next sample by key": KEY,
    "open the last sample": '[...document.querySelectorAll(".list button")].at(-1).click()',
}


def browse(page: Path, out: Path | None) -> None:
    """Print the times of loading and of every action, and whatever the console says."""
    from playwright.sync_api import sync_playwright

    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=system, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1300, "height": 950}, color_scheme="light")
        tab.set_default_timeout(120_000)
        tab.on("console", lambda message: print(f"console {message.type}: {message.text}"))
        tab.on("pageerror", lambda error: print(f"page error: {error}"))
        start = time.perf_counter()
        tab.goto(page.as_uri())
        _print("load", 1000 * (time.perf_counter() - start))
        section = tab.locator(".browser").first
        start = time.perf_counter()
        section.scroll_into_view_if_needed()
        tab.locator(".list button").first.wait_for()
        _print("list the samples", 1000 * (time.perf_counter() - start))
        for name, act in ACTIONS.items():
            _print(name, min(tab.evaluate(TIMED % act) for _ in range(3)))
        if out is not None:
            tab.locator(".list button").nth(1).click()
            for scheme in ("light", "dark"):
                tab.emulate_media(color_scheme=scheme)
                tab.evaluate("scrollTo(0, 0)")
                tab.screenshot(path=out / f"top-{scheme}.png")
                section.scroll_into_view_if_needed()
                tab.locator(".browser h3").first.evaluate("head => head.scrollIntoView()")
                tab.screenshot(path=out / f"samples-{scheme}.png")
        browser.close()


def _print(name: str, milliseconds: float) -> None:
    print(f"{name:<28} {milliseconds:7.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, usual in (("samples", 1000), ("cells", 40), ("images", 200), ("per-page", 1)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = manysamples.questions(folder / "sets", given.samples, (768, 1000), given.per_page)
        manysamples.fill(folder / "store", data, given.samples, given.cells)
        page = folder / "report.html"
        start = time.perf_counter()
        options = report.Options(images=given.images, samples=given.samples)
        report.write([folder / "store"], page, options)
        _print("write the page", 1000 * (time.perf_counter() - start))
        print(f"{'size of the page':<28} {page.stat().st_size / 2**20:7.1f} MiB")
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            shutil.copy(page, given.out)
        browse(page, given.out)


if __name__ == "__main__":
    main()
