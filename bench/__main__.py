"""`make bench`: every measurement, one after the other; each compares two things in the same run."""

from __future__ import annotations

import importlib
import sys

MEASUREMENTS = ("startup", "step_overhead")


def main() -> int:
    wanted = sys.argv[1:] or list(MEASUREMENTS)
    unknown = [name for name in wanted if name not in MEASUREMENTS]
    if unknown:
        print(f"no measurement {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}", file=sys.stderr)
        return 2
    for name in wanted:
        importlib.import_module(f"bench.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
