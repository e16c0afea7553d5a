"""Links lead somewhere, and nothing committed knows the machine it was written on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainctl.job.config import load

_FENCE = re.compile(r"(?ms)^ *```.*?^ *```")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# put together here, so that this file does not find itself
_MACHINE = re.compile("|".join(["/" + "root/", "/" + "home/[a-z]", "/" + "Users/", "/" + "work/"]))


def anchors(text: str) -> set[str]:
    """The anchors that a renderer makes of the headings: lower case, spaces to dashes, marks dropped."""
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#+ +(.*?)\s*$", _FENCE.sub("", text)):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists():
            broken.append(f"{page.name}: {target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            broken.append(f"{page.name}: {target}: no such heading")
    return broken


def test_links_resolve(repository_files: list[Path]) -> None:
    pages = [path for path in repository_files if path.suffix == ".md"]
    assert pages
    assert not [link for page in pages for link in broken_links(page)]


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Two Words: here\n[a](#two-words-here) [b](#nope) [c](gone.md)\n```\n[d](gone)\n```\n")
    assert broken_links(page) == ["page.md: #nope: no such heading", "page.md: gone.md: no such file"]


def test_no_paths_of_one_machine(repository_files: list[Path]) -> None:
    found = []
    for path in repository_files:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if _MACHINE.search(line):
                found.append(f"{path.name}:{number}: {line.strip()[:80]}")
    assert not found


def test_examples_load(root: Path) -> None:
    for path in (root / "docs" / "examples").glob("*.toml"):
        assert load(path, {}).settings.job.name


@pytest.mark.parametrize(
    "name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "requirements.lock", ".ci/run"]
)
def test_what_a_clone_needs_is_there(root: Path, name: str) -> None:
    assert (root / name).stat().st_size > 0
