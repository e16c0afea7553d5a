"""The closed list of causes: complete for people, and the page is the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainctl.run.causes import CAUSES, Cause, Restart, document

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_table() -> None:
    """Write it anew with `python -m trainctl.run.causes > docs/causes.md`."""
    assert (ROOT / "docs" / "causes.md").read_text() == document() + "\n"


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.name)
def test_words_for_operators(cause: Cause) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z]+)?", cause.name)
    for text in (cause.says, cause.advice):
        assert not text.endswith(".")
        assert "!" not in text
    if cause.restart is Restart.POINTLESS:
        assert cause.advice, "who has to mend it must be told how"
