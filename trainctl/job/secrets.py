"""Which environment variables carry secrets: their values appear in no output and no file. Pure."""

from __future__ import annotations

import re

HIDDEN = "(hidden)"
_NAME = re.compile("key|token|secret|pass|credential", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether the value of what is called `name` must be hidden. Errs on the side of hiding."""
    return bool(_NAME.search(name))
