"""Columns for a terminal or a pipe, and how the values of the operations port are written in them.

The columns are the same in both places, and no line is wrapped or cut, so an id can always be
copied; a terminal adds colour. Print with `print_text`. Names and paths come from clients, so
whatever a terminal could act on is shown spelled out.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

Json = Mapping[str, object]

NOTHING: Final = "-"
UNKNOWN: Final = "unknown"
GAP: Final = "  "


def print_text(console: Console, text: Text) -> None:
    """Write text as it is: neither wrapped nor cut to the width of the window."""
    console.print(text, soft_wrap=True)


def build_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], styled: Mapping[int, Mapping[str, str]]
) -> Text:
    """Lines with every column as wide as its widest cell; `styled` colours the words of a column."""
    widths = [max(cell_len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = [_build_line(header, widths, ["bold"] * len(header))]
    for row in rows:
        styles = [styled.get(place, {}).get(cell, "") for place, cell in enumerate(row)]
        lines.append(_build_line(row, widths, styles))
    return Text("\n").join(lines)


def _build_line(cells: Sequence[str], widths: Sequence[int], styles: Sequence[str]) -> Text:
    line = Text()
    for cell, width, style in zip(cells, widths, styles, strict=True):
        line.append(cell, style=style).append(" " * (width - cell_len(cell)) + GAP)
    line.rstrip()
    return line


def show_count(value: object) -> str:
    """A number; a count that nobody can know any more is not shown as none."""
    return UNKNOWN if value is None else show(value)


def show(value: object) -> str:
    """One value, with whatever a terminal could act on spelled out; nothing for what is not known."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "".join(one if one.isprintable() else _spell(one) for one in str(value))


def _spell(character: str) -> str:
    """A character that a terminal could act on, as its number."""
    return character.encode("unicode_escape").decode("ascii")


def list_mappings(value: object) -> list[Json]:
    """The mappings of a JSON list, and nothing of what is no list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def find_mapping(value: object, *path: str) -> Json:
    """What lies at a path of keys; empty where there is no such thing."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def show_number(value: object, form: str) -> str:
    """A number in the form given."""
    return format(value, form) if isinstance(value, int | float) else NOTHING


def show_share(value: object) -> str:
    """A share of 1, in percent."""
    return show_number(value, ".0%")


def show_age(value: object) -> str:
    """Seconds."""
    return f"{value:.1f} s" if isinstance(value, int | float) else NOTHING


def show_words(value: object) -> str:
    """A list of words."""
    return show(", ".join(str(word) for word in value)) if isinstance(value, list) else NOTHING
