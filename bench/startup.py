"""How soon `trainctl --help` answers, against `python -c "import torch"`. Aim: at most a quarter."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 9
AIM = 0.25


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    answer = [sys.executable, "-m", "trainctl", "--help"]
    torch = [sys.executable, "-c", "import torch"]
    for command in (answer, torch):
        seconds(command)  # compiled files and page cache
    pairs = [(seconds(answer), seconds(torch)) for _ in range(ROUNDS)]
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    print(
        f"startup         trainctl --help {statistics.median(p[0] for p in pairs) * 1000:.0f} ms, "
        f"import torch {statistics.median(p[1] for p in pairs) * 1000:.0f} ms, "
        f"ratio {ratio:.3f} (median of {ROUNDS} pairs, aim {AIM:g})"
    )
