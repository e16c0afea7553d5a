"""The arrows between packages point one way, modules stay small, and nothing heavy loads early."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("trainctl", "checks", "payload")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 500

# Who may import whom of ours, besides its own package. DESIGN: one direction, no arrow back up.
FLOOR = ("trainctl.errors", "trainctl.exitcodes")
ALLOWED = {
    "trainctl.exitcodes": (),
    "trainctl.errors": ("trainctl.exitcodes",),
    "trainctl.reporter": ("trainctl.job",),
    "trainctl.job": FLOOR,
    "trainctl.host": (*FLOOR, "trainctl.job"),
    "trainctl.ledger": (*FLOOR, "trainctl.job"),
    "checks": (*FLOOR, "trainctl.job", "trainctl.host"),
    "payload": (*FLOOR, "trainctl", "trainctl.reporter", "trainctl.job"),
    "trainctl.cluster": (*FLOOR, "trainctl", "trainctl.job", "trainctl.host", "trainctl.ledger", "checks"),
    "trainctl.run": (
        *(*FLOOR, "trainctl", "trainctl.reporter", "trainctl.job", "trainctl.host"),
        *("trainctl.ledger", "trainctl.cluster", "checks"),
    ),
    "trainctl.cli": (
        *(*FLOOR, "trainctl", "trainctl.job", "trainctl.host", "trainctl.ledger"),
        *("trainctl.cluster", "trainctl.run", "checks"),
    ),
    "trainctl": ("trainctl.reporter",),
    "trainctl.__main__": ("trainctl.cli",),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit(module: str) -> str:
    """The entry of ALLOWED that a module belongs to: its package, or itself at the top of trainctl."""
    return ".".join(module.split(".")[: 2 if module.startswith("trainctl.") else 1])


def our_imports(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """(line, module of ours) of every import, nested ones and those for types included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:
                start = ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
            # `from trainctl import errors` reaches into trainctl.errors, `import Reporter` does not
            names = [full if (full := f"{start}.{alias.name}") in MODULES else start for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] in PACKAGES:
                yield node.lineno, name


def wrong_arrows(source: str, module: str) -> list[str]:
    own = unit(module)
    return [
        f"line {line}: {module} must not import {name}"
        for line, name in our_imports(ast.parse(source), module)
        if unit(name) != own and unit(name) not in ALLOWED[own]
    ]


MODULES = {module_name(path) for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: module_name(path))
def test_imports_point_one_way(path: Path) -> None:
    assert not wrong_arrows(path.read_text(), module_name(path))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("trainctl.job.config", "from trainctl.host import gpus"),
        ("trainctl.job.config", "from trainctl import reporter"),
        ("trainctl.job.config", "from ..host import gpus"),
        ("trainctl.run.launch", "def f():\n    import payload.train"),
        ("trainctl.cli.launch", "from payload import train"),
        ("payload.train", "from checks import base"),
        ("payload.train", "from trainctl.run import supervise"),
        ("checks.drain", "from trainctl.ledger import store"),
        ("trainctl.ledger.store", "if TYPE_CHECKING:\n    from trainctl.run.launch import x"),
        ("trainctl.errors", "import trainctl.job.units"),
    ],
)
def test_a_wrong_arrow_is_seen(module: str, source: str) -> None:
    assert len(wrong_arrows(source, module)) == 1


def test_every_package_has_its_rule() -> None:
    assert {unit(module) for module in MODULES} <= set(ALLOWED)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: module_name(path))
def test_modules_are_small_and_well_named(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES
    words = set(path.stem.split("_"))
    assert not words & {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    if path.stem != "__init__":
        assert ast.get_docstring(ast.parse(path.read_text())), (
            "say what the module does, and what it must not"
        )


def test_folders_of_tests_do_not_shadow_packages() -> None:
    assert not {path.name for path in (ROOT / "tests").iterdir()} & set(PACKAGES)
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_command_line_loads_nothing_heavy(imported: Callable[[str], set[str]]) -> None:
    """Importing torch takes seconds, NumPy and SciPy tenths: `--help` must not wait for them."""
    loaded = imported("import trainctl.cli.app")
    assert "trainctl.cli.init" in loaded
    assert not loaded & {"torch", "numpy", "scipy", "pydantic", "tokenizers", "pynvml", "payload"}


def test_no_module_of_the_launcher_loads_torch(imported: Callable[[str], set[str]]) -> None:
    names = sorted(name for name in MODULES if not name.startswith("payload") and name != "trainctl.__main__")
    loaded = imported("\n".join(f"import {name}" for name in names))
    assert set(names) <= loaded
    assert not loaded & {"torch", "payload"}


def test_reporter_is_light(imported: Callable[[str], set[str]]) -> None:
    """It is imported by other people's trainers: standard library only."""
    loaded = imported("from trainctl import Reporter")
    assert "trainctl.reporter" in loaded
    ours = {name for name in loaded if name.split(".")[0] in PACKAGES}
    assert ours == {
        "trainctl",
        "trainctl.reporter",
        "trainctl.job",
        "trainctl.job.protocol",
        "trainctl.job.rundir",
    }
    assert not loaded & {"pydantic", "rich", "typer", "torch", "tomli", "psutil", "numpy"}
