"""The entry point of the job, looked at without running it, and a trial of the exception report.

trainctl does not import the trainer. What is read is its source; what is run is four lines of
our own that raise, to see that a first exception reaches the disk on this machine.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from trainctl.host.facts import TrainerFacts
from trainctl.job.protocol import ENV_ATTEMPT, ENV_RUN_DIR
from trainctl.job.rundir import RunDir, read_json

_TRIAL = """
from trainctl import Reporter
with Reporter():
    raise RuntimeError("raised by preflight to see it recorded")
"""


def read_trainer(
    script: Path | None, bundled: Path, tokenizer: Path | None, timeout_s: float
) -> TrainerFacts:
    """`script`: another trainer, None for the bundled one whose source is `bundled`."""
    if script is not None and script.suffix != ".py":
        return TrainerFacts(path=str(script), problem=_not_startable(script))
    path = bundled if script is None else script
    try:
        source = path.read_bytes()
    except OSError as error:
        return TrainerFacts(path=str(path), problem=f"{path}: {error.strerror}")
    proof, proof_error = _prove(timeout_s) if script is None else ("", "")
    return TrainerFacts(
        path=str(path),
        syntax_error=_syntax_error(source, path),
        reports=_imports_reporter(source),
        proof=proof,
        proof_error=proof_error,
        vocab=_vocabulary(tokenizer) if tokenizer else None,
    )


def _imports_reporter(source: bytes) -> bool:
    """Whether trainctl is imported anywhere in it; other packages have reporters too."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return False
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return any(name.partition(".")[0] == "trainctl" for name in modules)


def _not_startable(script: Path) -> str:
    if not script.is_file():
        return f"{script}: no such file"
    return "" if os.access(script, os.X_OK) else f"{script}: not executable"


def _syntax_error(source: bytes, path: Path) -> str:
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        return f"{path}:{line}: {getattr(error, 'msg', None) or error}"
    return ""


def _prove(timeout_s: float) -> tuple[str, str]:
    """Raise in a child under `Reporter`. (what was read back, what was missing); one of them is empty."""
    with tempfile.TemporaryDirectory(prefix="trainctl-exception-") as directory:
        attempt = RunDir(Path(directory)).new_attempt()
        inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        result = subprocess.run(
            (sys.executable, "-c", _TRIAL),
            env=inherited | {ENV_RUN_DIR: directory, ENV_ATTEMPT: str(attempt.number)},
            cwd=directory,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        report = read_json(attempt.exit_report(0))
        if result.returncode == 0:
            return "", "the trial exception did not end its process"
        if not report or report.get("exception") != "RuntimeError":
            last = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
            return "", f"the trial exception left no report ({' '.join(last)})"
        return f"{report['exception']} with {len(report['traceback'])} lines of traceback", ""


def _vocabulary(tokenizer: Path) -> int | None:
    """Largest token id plus one of a tokenizer.json; None when it cannot be told."""
    try:
        content = json.loads(tokenizer.read_bytes())
        ids = [int(entry["id"]) for entry in content.get("added_tokens", ())]
        vocabulary = content["model"]["vocab"]
        ids += vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return max(ids) + 1 if ids else None
