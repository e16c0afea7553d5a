"""References of errors are what people search for: readable, and each from one package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def references() -> dict[str, set[str]]:
    """ref -> the packages that raise it."""
    found = defaultdict(set)
    for package in ("trainctl", "checks", "payload"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "TrainctlError":
                    first = node.args[0]
                    assert isinstance(first, ast.Constant), f"{path.name}:{node.lineno}: ref is not a literal"
                    found[str(first.value)].add(path.parent.relative_to(ROOT).as_posix())
    return found


def test_references_are_kebab_case() -> None:
    found = references()
    assert len(found) > 5
    assert not [ref for ref in found if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", ref)]


def test_a_reference_comes_from_one_package() -> None:
    """The same words in two layers are two troubles, and one explanation cannot serve both."""
    assert not {ref: packages for ref, packages in references().items() if len(packages) > 1}


def test_every_reference_is_explained() -> None:
    page = ROOT / "docs" / "errors.md"
    if page.exists():  # `ref` promises to be an anchor there
        headings = set(re.findall(r"(?m)^##+ `?([a-z0-9-]+)`?$", page.read_text()))
        assert set(references()) == headings
