"""The tables behind the words: a name that leads nowhere would be worse than none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainctl.job import problems
from trainctl.job.settings import Settings


def keys() -> Iterator[tuple[str, FieldInfo]]:
    for section, field in Settings.model_fields.items():
        table: Any = field.annotation
        if isinstance(table, type) and issubclass(table, BaseModel):
            for key, inner in table.model_fields.items():
                yield f"{section}.{key}", inner


def test_aliases_lead_to_keys_and_are_none_themselves() -> None:
    valid = {name for name, _ in keys()}
    assert set(problems._KEY_ALIASES.values()) <= valid
    assert set(problems._SECTION_ALIASES.values()) <= set(Settings.model_fields)
    assert not set(problems._SECTION_ALIASES) & set(Settings.model_fields)
    for alias, target in problems._KEY_ALIASES.items():
        assert f"{target.split('.')[0]}.{alias}" not in valid


@pytest.mark.parametrize(("name", "field"), list(keys()))
def test_what_a_field_expects_has_words(name: str, field: FieldInfo) -> None:
    words = problems.expected(field.annotation, field.metadata)
    assert words
    assert "text that matches" not in words, f"{name}: put its pattern into words"
    assert field.description, f"{name} has no description"


def test_a_value_is_shown_short_and_on_one_line() -> None:
    assert problems.describe("a\nb") == '"a\\nb" (text)'
    assert len(problems.describe("x" * 1000)) < 80
