"""Response bodies: event streams, JSON lines and documents, as engines send them and as nobody does.

What has to hold: nothing raises; `boundary` is never beyond what was received, and no more than one event is
held; events are those of a reader that has all of the body at once; and however a body is cut, the same
is found in it. The first four bytes of an input choose the limit, the kind and API, the cuts, and the choices
that were asked for.
"""

import random
import re
from pathlib import Path
from typing import Any, Final

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.inspection import BodyKind, Inspector
from envoy_ext.domain.ndjson import NdjsonParser
from envoy_ext.domain.sse import SseEvent, SseParser
from tests.fuzz.http2_wire import Scramble

LONGEST: Final = 8_192
_LIMITS: Final = (64, 256, 4_096, 1 << 20)
_KINDS: Final = (BodyKind.SSE, BodyKind.SSE, BodyKind.NDJSON, BodyKind.JSON)
_FAMILIES: Final = sorted(ApiFamily)
_PIECES: Final = (
    b"\n",
    b"\n\n",
    b"\r\n",
    b"\r",
    b"\r\n\r\n",
    b": ping\n\n",
    b"\xef\xbb\xbf",
    b"data:",
    b"data: ",
    b"data",
    b"event: error\n",
    b"event: message_stop\n",
    b"id: 1\n",
    b"retry: 5\n",
    b"data: [DONE]\n\n",
    b'data: {"error": {"message": "no"}}\n\n',
    b"{}",
    b"null",
    b'"finish_reason": "stop"',
    b'"finish_reason": null',
    b'"usage": {"completion_tokens": 3}',
    b'"content": ""',
    b'"content": "\\n"',
    b'"index": 1',
    b'"index": -1',
    b'"index": 1e400',
    b'"index": "1"',
    b"9" * 30,
    b"NaN",
    b"[" * 40,
    b"\xff\xfe",
    b"\\ud800",
    b"\x00",
    b'"',
    b"\\",
    b'{"choices": [{"index": 0, "delta": {"content": "a"}}]}',
    b'"token": {"text": "x", "special": false}',
    b'"generated_text": "x"',
    b'{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}',
    b'{"type": "response.completed"}',
)
DICTIONARY: Final = tuple(piece for piece in _PIECES if len(piece) <= 64)
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_DATA: Final = Path(__file__).parent.parent / "data"


def check(data: bytes) -> None:
    """Read one body in several ways.

    Raises:
        AssertionError: a promise is broken; and whatever else the code raises.
    """
    if len(data) < 4:
        return
    limit = _LIMITS[data[0] % len(_LIMITS)]
    kind, family = _KINDS[data[1] % len(_KINDS)], _FAMILIES[data[1] // 4 % len(_FAMILIES)]
    choices, body = data[3] % 4 + 1, data[4:]
    ways = [[body], *_cut(body, random.Random(data[2]))]
    found = [_inspect(Inspector(family, kind, limit, choices=choices), pieces, limit) for pieces in ways]
    assert all(one == found[0] for one in found), "other cuts, another answer"
    if kind in (BodyKind.SSE, BodyKind.NDJSON):
        parser = SseParser if kind is BodyKind.SSE else NdjsonParser
        parsed = [_parse(parser(limit), pieces, limit) for pieces in ways]
        assert all(one == parsed[0] for one in parsed), "other cuts, other events"
        events, _, overflowed = parsed[0]
        if not overflowed:
            assert events == (_read_sse(body) if kind is BodyKind.SSE else _read_lines(body))


def _cut(body: bytes, rnd: random.Random) -> list[list[bytes]]:
    """Anywhere; behind each event, as engines flush, or a little later; by lines; and byte by byte."""
    ways = [_cut_at(body, sorted(rnd.choices(range(len(body) + 1), k=8)))]
    ends = [one.end() for one in re.finditer(rb"\n\n", body)]
    ways.append(_cut_at(body, [end + number % 3 for number, end in enumerate(ends)]))
    ways.append([piece for piece in re.split(rb"(?<=\n\n)", body) if piece])
    ways.append(body.splitlines(keepends=True))
    if len(body) <= 600:
        ways.append([body[at : at + 1] for at in range(len(body))])
    return ways


def _cut_at(body: bytes, cuts: list[int]) -> list[bytes]:
    return [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]


def _inspect(inspector: Inspector, pieces: list[bytes], limit: int) -> tuple[Any, ...]:
    fed = 0
    for piece in pieces:
        inspector.feed(piece)
        fed += len(piece)
        assert inspector.received == fed
        assert 0 <= inspector.boundary <= fed
        assert inspector.boundary + limit >= fed
        inspector.verdict_at_eof()
    return (
        inspector.boundary,
        inspector.watching,
        inspector.deltas,
        inspector.first_delta_seen,
        inspector.error,
        inspector.error_before_delta,
        inspector.malformed_events,
        inspector.done_marker,
        inspector.output_tokens,
        inspector.model_revision,
        inspector.verdict_at_eof(),
    )


def _parse(
    parser: SseParser | NdjsonParser, pieces: list[bytes], limit: int
) -> tuple[list[SseEvent], int, bool]:
    events: list[SseEvent] = []
    for piece in pieces:
        before = parser.boundary
        events += parser.feed(piece)
        assert before <= parser.boundary <= parser.received <= parser.boundary + limit
        assert len(parser._partial) <= limit
    return events, parser.boundary, parser.overflowed


def _read_sse(body: bytes) -> list[SseEvent]:
    """By the rules of the WHATWG, with all of it at hand."""
    found, data, name = [], [], b""
    for line in _LINE_END.split(body.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        field, _, value = line.partition(b":")
        if not line:
            if data:
                found.append(SseEvent(b"\n".join(data), name.decode("utf-8", "replace")))
            data, name = [], b""
        elif field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return found


def _read_lines(body: bytes) -> list[SseEvent]:
    return [SseEvent(line, "") for line in body.split(b"\n")[:-1] if line.strip()]


def seeds() -> list[bytes]:
    """Streams of real engines for the API that they are of, and some for others."""
    found = []
    paths = sorted((_DATA / "sse").glob("*.sse")) + sorted((_DATA / "real").glob("*_sse.raw"))
    for number, path in enumerate(paths):
        body = path.read_bytes()[:LONGEST]
        for family in (number % len(_FAMILIES), _guess_family(path.name)):
            found.append(bytes((3, 4 * family, number, 0)) + body)
        lines = b"\n".join(
            line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")
        )
        found.append(bytes((2, 4 * _guess_family(path.name) + 2, number, 1)) + lines)
    found += [bytes((0, 0, number, 0)) + piece * 2 for number, piece in enumerate(_PIECES)]
    found += [
        bytes((3, 4 * number + 3, 1, 0)) + b'{"choices": [], "usage": {"completion_tokens": 4}}'
        for number in range(len(_FAMILIES))
    ]
    return found


def _guess_family(name: str) -> int:
    families = {
        "responses": ApiFamily.RESPONSES,
        "anthropic": ApiFamily.MESSAGES,
        "completions": ApiFamily.COMPLETIONS,
    }
    chosen = next((family for word, family in families.items() if word in name), ApiFamily.CHAT)
    return _FAMILIES.index(chosen)


def mutate(data: bytes, most: int, rnd: random.Random, scramble: Scramble) -> bytes:
    """Change a body line by line."""
    head, body = bytearray(data[:4].ljust(4, b"\0")), data[4:]
    if rnd.random() < 0.15:
        head[rnd.randrange(4)] = rnd.randrange(256)
    for _ in range(rnd.choice((1, 1, 2, 4))):
        lines = body.splitlines(keepends=True)
        at = rnd.randrange(len(lines) + 1)
        what = rnd.randrange(6)
        if what <= 1 or at == len(lines):
            place = rnd.randrange(len(body) + 1)
            body = body[:place] + rnd.choice(_PIECES) + body[place:]
        elif what == 2:
            lines[at:at] = [lines[at]] * rnd.choice((1, 2, 10))
            body = b"".join(lines)
        elif what == 3:
            other = rnd.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
            body = b"".join(lines)
        elif what == 4:
            del lines[at]
            body = b"".join(lines)
        else:
            lines[at] = scramble(lines[at], len(lines[at]) + 20)
            body = b"".join(lines)
    return (bytes(head) + body)[:most]
