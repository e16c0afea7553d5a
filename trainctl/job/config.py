"""TOML file, environment and flags -> `Settings`, every value with the place it came from.

Defaults < file < TRAINCTL_<SECTION>__<KEY> < `--set section.key=value`. All problems are reported at
once, and nothing is accepted until there are none. Nothing here looks at the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli
from pydantic import BaseModel, ValidationError

from trainctl.errors import TrainctlError
from trainctl.job.problems import accepts_text, explain, unknown_name
from trainctl.job.settings import Settings
from trainctl.job.toml_lines import KeyPath, key_lines, line_of, repeated_key

_ENVIRONMENT_NAME = re.compile(r"TRAINCTL_([A-Za-z0-9_]+?)__(.+)")
_POSITION = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A configuration without problems.

    sources: dotted key -> "default", "trainctl.toml:12", "environment TRAINCTL_TRAIN__LR" or
    "flag --set train.lr", for every key there is. base_dir: relative paths start here.
    """

    settings: Settings
    sources: dict[str, str]
    base_dir: Path
    path: Path | None


@dataclass(slots=True)
class _Layers:
    """Raw values as they pile up. `origin` is kept for keys from environment and flags only."""

    values: dict[str, Any] = field(default_factory=dict)
    origin: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def load(path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()) -> Loaded:
    """Read `path` (None: no file) and what overrides it. `overrides` are texts "section.key=value".

    Raises TrainctlError "config-missing", "config-unreadable", "config-syntax" or "config-invalid".
    """
    text = "" if path is None else _read(path)
    return load_text(text, path=path, environ=environ, overrides=overrides)


def load_text(
    text: str, *, path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> Loaded:
    """`load` for a text that would stand in `path`."""
    layers = _Layers(values=_parse(text, path))
    _add_environment(layers, environ)
    _add_flags(layers, overrides)
    # a section that nobody mentions is an empty one, so that what it lacks is named key by key
    values = {name: {} for name in Settings.model_fields} | layers.values
    problems = layers.problems
    lines: dict[KeyPath, int] | None = None
    settings = None
    try:
        settings = Settings.model_validate(_frozen(values), strict=True)
    except ValidationError as error:
        lines = key_lines(text)
        problems = [*_placed(explain(error), layers, lines, path), *problems]
    if settings is None or problems:
        raise _invalid(problems, path)
    return Loaded(
        settings=settings,
        sources=_sources(settings, layers, key_lines(text), path),
        base_dir=Path.cwd() if path is None else path.absolute().parent,
        path=path,
    )


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        hint = "trainctl init" if path.name == "trainctl.toml" else f"trainctl init {path}"
        raise TrainctlError(
            "config-missing", f"{path} does not exist", hint=f"{hint} writes one for this machine"
        ) from None
    except IsADirectoryError:
        inside = path / "trainctl.toml"
        raise TrainctlError(
            "config-unreadable",
            f"{path} is a directory, expected a configuration file",
            hint=f"name the file: {inside}" if inside.exists() else f"trainctl init {inside} writes one",
        ) from None
    except OSError as error:
        raise TrainctlError(
            "config-unreadable",
            f"{path} cannot be read: {str(error.strerror).lower()}",
            hint="name a file that this user can read",
        ) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise TrainctlError(
            "config-unreadable",
            f"{path}:{line}: found the byte 0x{raw[error.start]:02x}, expected UTF-8 text",
            hint="save the file as UTF-8",
        ) from None


def _parse(text: str, path: Path | None) -> dict[str, Any]:
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise _syntax_error(str(error), text, path) from None


def _syntax_error(message: str, text: str, path: Path | None) -> TrainctlError:
    """A repeated key names both lines, anything else the line, the column and the place in the text."""
    twice = repeated_key(text)
    if twice is not None and re.search("twice|overwrite|mutate", message):
        key, first, again = twice
        name = ".".join(str(part) for part in key)
        return TrainctlError(
            "config-syntax",
            f"{path}:{again}: {name} is given twice, first in line {first}",
            hint="keep one of them",
        )
    match = _POSITION.fullmatch(message)
    what, lines = (match["what"] if match else message), text.rstrip().split("\n")
    line = int(match["line"]) if match and match["line"] else len(lines)
    column = int(match["column"]) if match and match["column"] else len(lines[-1]) + 1
    shown = lines[line - 1].rstrip("\r").replace("\t", " ") if line <= len(lines) else ""
    return TrainctlError(
        "config-syntax",
        f"{path}:{line}:{column}: not valid TOML, {what[:1].lower()}{what[1:]}",
        context=(shown, " " * (column - 1) + "^"),
        hint='text stands in quotes: name = "gpt"; sections stand in brackets: [train]',
    )


def _add_environment(layers: _Layers, environ: Mapping[str, str]) -> None:
    for name in sorted(environ):
        match = _ENVIRONMENT_NAME.fullmatch(name)
        if match:
            section = match[1].lower()
            key = match[2] if section == "env" else match[2].lower()
            _override(layers, section, key, environ[name], f"environment {name}")


def _add_flags(layers: _Layers, overrides: Sequence[str]) -> None:
    for override in overrides:
        name, equals, text = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            layers.problems.append(f"flag --set {override}: expected section.key=value, like train.lr=3e-4")
            continue
        _override(layers, section, key, text.strip(), f"flag --set {section}.{key}")


def _override(layers: _Layers, section: str, key: str, text: str, origin: str) -> None:
    table = layers.values.setdefault(section, {})
    if section not in Settings.model_fields:
        del layers.values[section]
        layers.problems.append(f"{origin}: {unknown_name((section,), {})}")
    elif isinstance(table, dict):  # else the file is wrong here, and that will be said
        table[key] = _typed(section, key, text)
        layers.origin[section, key] = origin


def _typed(section: str, key: str, text: str) -> Any:
    """`text` as the field wants it: a TOML value where it is one, else plain text."""
    table = Settings.model_fields[section].annotation
    takes_text = section == "env"
    if isinstance(table, type) and issubclass(table, BaseModel) and key in table.model_fields:
        takes_text = accepts_text(table.model_fields[key].annotation)
    try:
        parsed = tomli.loads(f"value = {text}")
    except tomli.TOMLDecodeError:
        return text
    value = parsed.pop("value")
    # a line break in the text could smuggle in further keys; such a text is not one value
    return text if parsed or (takes_text and not isinstance(value, str)) else value


def _frozen(value: Any) -> Any:
    """Lists as tuples, which is what strict validation of tuple fields takes."""
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return tuple(_frozen(inner) for inner in value) if isinstance(value, list) else value


def _placed(
    found: list[tuple[KeyPath, str]], layers: _Layers, lines: dict[KeyPath, int], path: Path | None
) -> list[str]:
    """Each problem with the place to go to, in the order of the file, overrides after it."""
    placed = []
    for key, text in found:
        origins = [origin for at, origin in layers.origin.items() if at == key[:2]]
        if len(key) == 1:  # a rule over several keys of a section: an override among them decides
            origins = [
                origin for at, origin in layers.origin.items() if at[0] == key[0] and str(at[1]) in text
            ]
        line = line_of(key, lines)
        if origins:
            placed.append((1, 0, f"{', '.join(origins)}: {text}"))
        else:
            place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
            placed.append((0, line or 0, place + text))
    return [text for _, _, text in sorted(placed, key=lambda entry: entry[:2])]


def _invalid(problems: list[str], path: Path | None) -> TrainctlError:
    many = len(problems) > 1
    return TrainctlError(
        "config-invalid",
        f"{path or 'the configuration'} has {len(problems)} problems" if many else problems[0],
        context=tuple(problems) if many else (),
        hint="correct this, then `trainctl plan` shows every value and where it came from",
    )


def _sources(
    settings: Settings, layers: _Layers, lines: dict[KeyPath, int], path: Path | None
) -> dict[str, str]:
    sources = {}
    for section in Settings.model_fields:
        table = getattr(settings, section)
        for key in table if isinstance(table, dict) else type(table).model_fields:
            line = lines.get((section, key))
            place = "default" if path is None or line is None else f"{path.name}:{line}"
            sources[f"{section}.{key}"] = layers.origin.get((section, key), place)
    return sources
