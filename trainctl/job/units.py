"""Numbers as people read them: every one with its unit. Pure formatting, no rounding of data."""

from __future__ import annotations


def human_seconds(seconds: float) -> str:
    """0.042 -> "42 ms", 3.14 -> "3.1 s", 8880 -> "2 h 28 min", 200000 -> "2 d 7 h"."""
    if seconds < 0:
        return f"-{human_seconds(-seconds)}"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 or seconds == 0 else f"{seconds * 1e6:.0f} us"
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,} d {hours} h" if hours else f"{days:,} d"


def human_bytes(size_bytes: float) -> str:
    """Binary units: 1536 -> "1.5 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def human_count(count: float) -> str:
    """41200 -> "41.2k", 3_280_000 -> "3.28M"."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.3g}"
