"""Prometheus text, read for a handful of families by exact name.

An engine's page has hundreds of lines, of which a dozen are wanted, once a second, for every
replica. So the page stays bytes, one expression finds the lines that begin with exactly a wanted
name, and only those are taken apart. What the names have in common stands in it once, so other lines
are left at the first byte that differs; nothing is built for them. What the labels of a line say is
remembered: they are the same at each look.

The grammar is that of the text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).
OpenMetrics lines that engines were seen to mix in (exemplars, `# EOF`, timestamps in seconds) are
read too. A line of a wanted name that breaks the grammar is a sample whose value is not a number: what
it stands for is not known, and a sum without it would be a wrong one. The rest of the page is as good
as it was.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Final

from envoy_ext.domain.errors import PeerViolation

MAX_SERIES: Final = 10_000
"""Series of the wanted families on one page. The most that real engines have is a few hundred (ranks times
priorities); a page beyond this is not an engine's, and reading it would cost memory for nothing."""

_BOM: Final = b"\xef\xbb\xbf"
_MAX_LINE_BYTES: Final = 16 * 1024
"""Of a wanted sample. The longest line of a real page, vLLM's cache_config_info, has 1 KB; the bound keeps
the memory of the expressions small."""
_SLICE_BYTES: Final = 256 * 1024
"""Of a page, searched in one go: a search holds the interpreter, less than a millisecond for so much."""
_REMEMBERED_BYTES: Final = 512
"""Of labels, at most, to be remembered; the longest of a real page that are read have 100."""
_REMEMBERED: Final = 4096
"""Different labels: replicas of one model have the same, a few for each family."""
_MAX_NUMBER_BYTES: Final = 400
"""Shortest forms stay below 25; printf's %f of the largest double has 316."""

_FIRST_LINE: Final = re.compile(
    rb"[ \t\r\n]*(?:\Z|#|[a-zA-Z_:][a-zA-Z0-9_:]*(?:[ \t]*\{|[ \t]+[-+.0-9NnIi]))"
)
_LABEL_NAME: Final = rb"[a-zA-Z_][a-zA-Z0-9_]*"
_LABEL_VALUE: Final = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_LABEL: Final = re.compile(rb'(%s)[ \t]*=[ \t]*"(%s)"' % (_LABEL_NAME, _LABEL_VALUE))
# Old DCGM exporters write blanks between labels; the format allows a comma after the last one.
_LABELS: Final = re.compile(
    rb'[ \t]*\{((?:[ \t]*%s[ \t]*=[ \t]*"%s"[ \t]*(?:,|(?=\})))*+)[ \t]*\}' % (_LABEL_NAME, _LABEL_VALUE)
)
_NUMBER: Final = re.compile(rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER: Final = re.compile(rb"[-+]?(?:nan|inf|infinity)", re.IGNORECASE)
_ESCAPE: Final = re.compile(r'\\[\\n"]')
_UNESCAPED: Final = {r"\\": "\\", r"\n": "\n", r"\"": '"'}


class NotMetrics(PeerViolation):
    """The body is not Prometheus text: HTML, JSON, something compressed."""


@dataclass(frozen=True, slots=True)
class Series:
    """One sample line. `value` may be NaN or infinite, as the page says it, and is NaN where the line
    cannot be read; see `figures`."""

    name: bytes
    labels: Mapping[str, str]
    value: float


def scan(page: bytes, wanted: frozenset[bytes]) -> list[Series]:
    """Every sample of the wanted names, in the page's order.

    Duplicates are given as often as they stand there. Raises `NotMetrics`, and nothing else.
    """
    if page.startswith(_BOM):
        page = page[len(_BOM) :]
    _check_first_line(page)
    found: list[Series] = []
    for name, rest in _find_lines(b"\n" + page, _compile_lines(wanted)):
        if len(found) == MAX_SERIES:
            raise NotMetrics(f"more than {MAX_SERIES} series in the families that are read")
        found.append(_read_sample(name, rest))
    return found


def drop_unfinished_line(page: bytes) -> bytes:
    """The page without a last line that has no newline: `waiting 12` may be the first half of `waiting 120`.

    For a body whose end proves nothing. The text format ends every line with a newline, but pages
    are known that leave out the last one, so a body of known length is better read as it is.
    """
    return page[: page.rfind(b"\n") + 1]


def _check_first_line(page: bytes) -> None:
    """An empty page is a page: an engine that has nothing to tell yet."""
    if not _FIRST_LINE.match(page):
        raise NotMetrics("the page does not begin with a comment or a sample")


@lru_cache(64)
def _compile_lines(wanted: frozenset[bytes]) -> re.Pattern[bytes]:
    """A newline, a wanted name and what follows it on the line.

    The format allows blanks in front of a name; no writer makes any, and a newline right before it is
    what the search is fastest for.
    """
    choice = _write_choice(sorted(wanted)) if wanted else rb"(?!)"
    return re.compile(rb"\n(%s)([{ \t][^\n]*)" % choice)


def _write_choice(words: Sequence[bytes]) -> bytes:
    """An expression for any of the words, which are sorted, with what they have in common written once."""
    first, last = words[0], words[-1]
    common = next((at for at, byte in enumerate(first) if last[at] != byte), len(first))
    rests = [word[common:] for word in words]
    if len(rests) == 1:
        return re.escape(first)
    groups = groupby(rests, key=lambda rest: rest[:1])
    return re.escape(first[:common]) + b"(?:%s)" % b"|".join(
        _write_choice(list(group)) for _, group in groups
    )


def _find_lines(page: bytes, lines: re.Pattern[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Name and rest of each line that is found, slice by slice; a slice ends where a line does."""
    start = 0
    while start < len(page):
        end = len(page)
        if end - start > _SLICE_BYTES:
            end = page.find(b"\n", start + _SLICE_BYTES)
            end = len(page) if end == -1 else end
        yield from lines.findall(page, start, end)
        start = end


def _read_sample(name: bytes, rest: bytes) -> Series:
    """What follows the name: labels in braces, a value, then a timestamp or an exemplar or nothing."""
    if len(rest) > _MAX_LINE_BYTES:
        return Series(name, {}, math.nan)
    head, _, last = rest.rpartition(b" ")
    if (
        head[-1:] in (b"", b"}")
        and len(head) <= _REMEMBERED_BYTES
        and len(last) <= _MAX_NUMBER_BYTES
        and _NUMBER.fullmatch(last)
    ):
        # As nearly all lines are: labels or none, and a number behind one blank.
        remembered = _remember_labels(head)
        if remembered is not None:
            return Series(name, remembered, float(last))
    labels: Mapping[str, str] = {}
    if braces := _LABELS.match(rest):
        labels = _read_labels(braces)
        rest = rest[braces.end() :]
    value, *more = rest.split(None, 2) or [b""]
    number = _read_number(value)
    if number is None or not _may_follow_a_value(more):
        return Series(name, labels, math.nan)
    return Series(name, labels, number)


@lru_cache(_REMEMBERED)
def _remember_labels(raw: bytes) -> Mapping[str, str] | None:
    """What the labels say; None when there is something else, too, or instead."""
    if not raw:
        return MappingProxyType({})
    braces = _LABELS.fullmatch(raw)
    return None if braces is None else MappingProxyType(_read_labels(braces))


def _read_labels(braces: re.Match[bytes]) -> dict[str, str]:
    return {label.decode(): _read_label_value(raw) for label, raw in _LABEL.findall(braces[1])}


def _read_label_value(raw: bytes) -> str:
    value = raw.decode(errors="replace")
    return _ESCAPE.sub(lambda escape: _UNESCAPED[escape[0]], value) if "\\" in value else value


def _read_number(raw: bytes) -> float | None:
    """Checked before `float`, which also takes underscores and has no bound on length."""
    if len(raw) > _MAX_NUMBER_BYTES or not (_NUMBER.fullmatch(raw) or _NO_NUMBER.fullmatch(raw)):
        return None
    return float(raw)


def _may_follow_a_value(fields: list[bytes]) -> bool:
    match fields:
        case []:
            return True
        case [first, *_] if first.startswith(b"#"):
            return True
        case [timestamp]:
            return _read_number(timestamp) is not None
        case [timestamp, exemplar]:
            return _read_number(timestamp) is not None and exemplar.startswith(b"#")
        case _:
            return False
