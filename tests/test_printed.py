"""scripts/printed.py: blocks of the documentation are what their command prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("printed", ROOT / "scripts" / "printed.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def test_a_block_is_what_its_command_prints_and_the_rest_stays():
    text = "before\n<!-- printed: printf 'a  \\nb' -->\n```text\nold\n```\n<!-- end -->\nafter\n"
    assert script.rewritten(text) == text.replace("old", "a\nb")
    table = "<!-- printed: echo '| x |' -->\nold\n<!-- end -->"
    assert script.rewritten(table) == "<!-- printed: echo '| x |' -->\n\n| x |\n\n<!-- end -->"
    assert script.rewritten(script.rewritten(table)) == script.rewritten(table)


def test_a_command_that_fails_is_named_and_nothing_is_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- printed: false | cat -->\nold\n<!-- end -->\n")
    with pytest.raises(SystemExit, match="false | cat"):
        script.rewritten(page.read_text())
    assert "old" in page.read_text()


def test_every_block_of_the_documentation_is_closed():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text("utf-8")
        assert len(script.BLOCK.findall(text)) == text.count("<!-- printed: "), page
