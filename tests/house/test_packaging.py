"""What an installation gets: three packages, nothing else; and a lock that covers what is declared."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomli

import trainctl


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy: a build leaves folders beside its sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("trainctl", "checks", "payload", "tests"):
        shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source / name)
    target = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            target,
            source,
        ],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


def test_three_packages_and_nothing_else(wheel: zipfile.ZipFile, root: Path) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"trainctl", "checks", "payload"}
    for package in ("trainctl", "checks", "payload"):
        sources = {path.relative_to(root).as_posix() for path in (root / package).rglob("*.py")}
        assert sources <= names, "a sub-package is missing in [tool.setuptools] packages"
        assert f"{package}/py.typed" in names


def test_name_version_licence_and_command(wheel: zipfile.ZipFile) -> None:
    info = f"trainctl_launcher-{trainctl.__version__}.dist-info"
    assert "Version 2.0, January 2004" in wheel.read(f"{info}/licenses/LICENSE").decode()
    assert "trainctl = trainctl.cli.app:main" in wheel.read(f"{info}/entry_points.txt").decode()


def test_the_lock_has_exact_versions_of_everything_declared(root: Path) -> None:
    project = tomli.loads((root / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    lines = [
        line for line in (root / "requirements.lock").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    locked = {canonical(line) for line in lines}
    assert {canonical(requirement) for requirement in declared} <= locked
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( ; python_version (<|>=) \"3\.\d+\")?", line) for line in lines)


def canonical(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def test_the_change_log_knows_this_version(root: Path) -> None:
    assert re.search(rf"(?m)^## .*{re.escape(trainctl.__version__)}", (root / "CHANGELOG.md").read_text())
