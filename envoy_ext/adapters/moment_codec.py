"""Moments as people write them: RFC 3339 with a time zone, a day, or so long ago."""

import re
from datetime import UTC, datetime
from typing import Final

_MOMENT: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)([Zz]|[+-]\d{2}:\d{2}))?", re.ASCII
)
"""https://www.rfc-editor.org/rfc/rfc3339#section-5.6; Python's own parser takes much that is none."""
_AGO: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
FORMS: Final = "write 2026-11-30T18:00:00Z (or with +01:00), or 2026-11-30, which is its start in UTC"


def parse_moment(text: str) -> float:
    """Unix seconds of a moment, or a ValueError that says how one is written."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"not a moment: {FORMS}")
    day, time, zone = found.groups()
    if time is None:
        time, zone = "00:00:00", "Z"
    whole, _, fraction = time.partition(".")
    try:
        moment = datetime.fromisoformat(f"{day}T{whole}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError:
        raise ValueError(f"no such moment: {FORMS}") from None
    return moment.astimezone(UTC).timestamp() + float(f"0.{fraction or 0}")


def parse_when(text: str, now: float) -> float:
    """The same, or so long before now: 90s, 15m, 24h, 7d."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0.0, now - int(ago[1]) * _SECONDS[ago[2]])
    try:
        return parse_moment(text)
    except ValueError as mistake:
        raise ValueError(f"{mistake}; or how long ago: 15m, 24h, 7d") from None
