"""Lines of keys, compared with the slow way that needs no argument: parse every prefix of the text."""

from __future__ import annotations

from typing import Any

import tomli
from hypothesis import given
from hypothesis import strategies as st

from trainctl.job.toml_lines import key_lines, line_of, repeated_key

VALUES = ("1", "3e-4", '"a # b"', "'=['", "[1, 2]", "{ x = 1 }", "true", "1979-05-27")


@st.composite
def single_line_files(draw: st.DrawFn) -> str:
    """Every statement on one line, among comments, blank lines and odd spacing."""
    lines = []
    for section in draw(st.lists(st.sampled_from(["a", "b", '"c d"', "e.f"]), unique=True)):
        lines.append(draw(st.sampled_from(["", "# [z]", "# k = 1"])))
        lines.append(f"  [{section}] # here")
        for key in draw(st.lists(st.sampled_from(["k", "l-m", '"n.o"', "p.q", "'r'"]), unique=True)):
            lines.append(f"{key}  = {draw(st.sampled_from(VALUES))} # k = 2")
    return "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n# end"]))


def by_prefixes(text: str) -> dict[tuple[str, ...], int]:
    """First line after which a key exists, for every key."""
    found: dict[tuple[str, ...], int] = {}

    def visit(value: Any, path: tuple[str, ...], line: int) -> None:
        for key, inner in value.items():
            found.setdefault((*path, key), line)
            if isinstance(inner, dict):
                visit(inner, (*path, key), line)

    lines = text.split("\n")
    for line in range(1, len(lines) + 1):
        visit(tomli.loads("\n".join(lines[:line])), (), line)
    return found


@given(single_line_files())
def test_agrees_with_parsing_every_prefix(text: str) -> None:
    assert key_lines(text) == by_prefixes(text)


def test_a_multi_line_value_stands_where_its_key_starts() -> None:
    text = '[a]\nlist = [\n  1, # ]\n  2,\n]\ntext = """\nlr = 3\n[b]\n"""\nlast = 1\r\n'
    lines = key_lines(text)
    assert (lines["a", "list"], lines["a", "text"], lines["a", "last"]) == (2, 6, 10)
    assert ("b",) not in lines
    assert ("a", "lr") not in lines


def test_entries_of_a_list_of_tables_have_their_own_lines() -> None:
    text = '[[p.waive]]\ncode = "1"\n[[p.waive]]\ncode = "2"\nreason = "x"\n'
    lines = key_lines(text)
    assert lines["p", "waive"] == 1
    assert lines["p", "waive", 0, "code"] == 2
    assert lines["p", "waive", 1, "code"] == 4
    assert line_of(("p", "waive", 1, "nowhere"), lines) == 3
    assert line_of(("q",), lines) is None


def test_repeated_keys_and_tables_are_found() -> None:
    assert repeated_key("[a]\nk = 1\n\nk = 2\n") == (("a", "k"), 2, 4)
    assert repeated_key("[a]\n[b]\n[a]\n") == (("a",), 1, 3)
    assert repeated_key("[a]\nk = 1\n[b]\nk = 1\n[[c]]\nk = 1\n[[c]]\nk = 1\n") is None
