"""What the house rules look at: the files of the repository, and Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def repository_files() -> list[Path]:
    """Every file that is committed or would be, that is: not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return sorted(path for name in set(listed.stdout.split("\0")) if name and (path := ROOT / name).is_file())


@pytest.fixture
def imported() -> Callable[[str], set[str]]:
    """The modules that are loaded after running some code in a fresh interpreter."""

    def run(code: str) -> set[str]:
        script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    return run
