"""In which line of a TOML text a key stands. The parser does not say, and an error without it is no help.

A TOML statement ends at the first line end at which it is complete, so handing lines to the real
parser until they parse finds every statement, multi-line values too, without a second grammar.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tomli

KeyPath = tuple[str | int, ...]


def key_lines(text: str) -> dict[KeyPath, int]:
    """First line, from 1, of every key and table: ("train", "lr"), ("preflight", "waive", 0, "code")."""
    lines: dict[KeyPath, int] = {}
    for line, path in _keys(text):
        for depth in range(1, len(path) + 1):
            lines.setdefault(path[:depth], line)
    return lines


def line_of(path: KeyPath, lines: dict[KeyPath, int]) -> int | None:
    """Line of the key, or of the nearest thing around it that has one."""
    for depth in range(len(path), 0, -1):
        if path[:depth] in lines:
            return lines[path[:depth]]
    return None


def repeated_key(text: str) -> tuple[KeyPath, int, int] | None:
    """The first key or table that is given twice: (path, first line, second line)."""
    seen: dict[KeyPath, int] = {}
    for line, path in _keys(text):
        if path in seen:
            return path, seen[path], line
        seen[path] = line
    return None


def _keys(text: str) -> Iterator[tuple[int, KeyPath]]:
    """(line where it starts, path) of every table header and every value, in the order of the text."""
    table: KeyPath = ()
    lengths: dict[KeyPath, int] = {}  # of arrays of tables
    statement, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not statement:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            start = number
        elif not any(mark in line for mark in "]}\"'"):
            statement += line + "\n"  # nothing here can end a multi-line value
            continue
        statement += line + "\n"
        try:
            value = tomli.loads(statement)
        except tomli.TOMLDecodeError:
            continue
        if statement.lstrip().startswith("["):
            table = next(_paths(value))
            if statement.lstrip().startswith("[["):
                lengths[table] = lengths.get(table, -1) + 1
                table = (*table, lengths[table])
            yield start, table
        else:
            for path in _paths(value):
                yield start, (*table, *path)
        statement = ""


def _paths(value: dict[str, Any]) -> Iterator[KeyPath]:
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            for path in _paths(inner):
                yield (key, *path)
        else:
            yield (key,)
