"""Reading files that others still write to: whole new lines since the last look."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20
_LINE_BYTES = 64 * 1024


class LineTail:
    """Whole lines of one growing file. A half-written line waits for its end; a huge one is cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[str]:
        """Lines that were completed since the last call, at most about a mebibyte of them."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                raw = file.read(_CHUNK_BYTES)
        except OSError:
            return []
        self._offset += len(raw)
        *lines, self._rest = (self._rest + raw).split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        return [line[:_LINE_BYTES].decode("utf-8", "replace").rstrip("\r") for line in lines]

    def rest(self) -> list[str]:
        """What is left, also a last line without its end."""
        lines = self.read()
        while more := self.read():
            lines.extend(more)
        if self._rest:
            lines.append(self._rest.decode("utf-8", "replace"))
            self._rest = b""
        return lines


def number(record: dict[str, Any], name: str) -> float | None:
    """A field of a record when it is a finite number: foreign trainers write what they like."""
    value = record.get(name)
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if usable else None


class RecordTail:
    """The newest record of each kind in a growing file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._tail = LineTail(path)
        self.newest: dict[str, dict[str, Any]] = {}

    def read(self) -> dict[str, dict[str, Any]]:
        """kind -> newest record, with what was added since the last call."""
        while lines := self._tail.read():
            for line in lines:
                try:
                    record = json.loads(line)
                    self.newest[record["kind"]] = record
                except (ValueError, KeyError, TypeError):
                    continue
        return self.newest
