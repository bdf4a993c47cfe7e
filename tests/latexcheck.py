"""What pdflatex would refuse in a table, found without it: nesting, unescaped signs, columns, commands."""

from __future__ import annotations

import re

COMMANDS = {
    *("begin", "end", "caption", "centering", "small", "scriptsize", "footnotesize", "raggedright", "par"),
    *("toprule", "midrule", "bottomrule", "cmidrule", "addlinespace", "multicolumn", "smallskip"),
    *("setlength", "tabcolsep", "textbf", "textbackslash", "textasciicircum", "textasciitilde"),
    *("textless", "textgreater", "textbar", "uparrow", "downarrow", "rightarrow", "bullet", "times"),
    *("alpha", "beta", "tau", "geq", "leq", "label", "linewidth"),
}


def check(source: str) -> None:
    """Raises AssertionError for a ``table`` source that would not compile with booktabs alone."""
    assert source.isascii(), "the default fonts lack signs beyond ASCII"
    text = re.sub(r"(?m)^%.*$", "", source)
    assert not set(re.findall(r"\\([A-Za-z]+)", text)) - COMMANDS, "a command that is not defined"
    _nesting(text)
    _signs(text)
    tabulars = re.findall(r"\\begin\{tabular\}\{((?:[lcr]|p\{[^}]*\})+)\}(.*?)\\end\{tabular\}", text, re.S)
    assert tabulars and len(tabulars) == text.count(r"\begin{tabular}"), "a tabular without plain columns"
    for columns, body in tabulars:
        _columns(len(re.findall("[lcrp]", re.sub(r"\{[^}]*\}", "", columns))), body)


def _nesting(text: str) -> None:
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack and stack.pop() == name, f"\\end{{{name}}} has no \\begin"
    assert not stack, f"{stack} never ends"
    depth = 0
    for sign in re.findall(r"(?<!\\)(?:\\\\)*([{}])", re.sub(r"\\[{}]", "", text)):
        depth += 1 if sign == "{" else -1
        assert depth >= 0, "a brace closes that never opened"
    assert depth == 0, "a brace never closes"


def _signs(text: str) -> None:
    plain = re.sub(r"\\[&%$#_{}]", "", text)
    assert plain.count("$") % 2 == 0, "a formula never ends"
    outside = re.sub(r"\$[^$]*\$", "", plain)
    assert not re.search(r"[%#_^~]", outside), "a sign that LaTeX reads as a command"
    tables = re.sub(r"\\begin\{tabular\}.*?\\end\{tabular\}", "", plain, flags=re.S)
    assert "&" not in tables, "an & outside a tabular"


def _columns(count: int, body: str) -> None:
    for row in body.split(r"\\"):
        row = re.sub(r"\\[&%$#_{}]", "", row)
        spans = [int(number) for number in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        for first, last in re.findall(r"\\cmidrule\(\w+\)\{(\d+)-(\d+)\}", row):
            assert 1 <= int(first) <= int(last) <= count, "a rule under columns that are not there"
        if not re.fullmatch(r"\s*(\\\w+(\(\w+\))?(\{[\d-]+\})?\s*)*", row):
            assert row.count("&") + 1 + sum(spans) - len(spans) == count, f"not {count} columns: {row}"
