"""A client's session as a fuzz input: frames, and between them commands for whoever drives the server.

A seed, a byte of options, then frames. A frame whose type is 0xF0 or higher never reaches the server: it says
what else happens at that point (`Command`). Without the option RAW_HELLO the preface and SETTINGS go in
front, so that what follows is read at all.
"""

import random
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import hpack

from tests.support import http2_client as client
from tests.support.http2_client import Frame

RAW_HELLO, LOW_LIMITS, SHUT_WINDOWS, END_AT_HALF_CLOSE = 0x1, 0x2, 0x4, 0x8


class Command(IntEnum):
    """What a driver does."""

    WRITABLE = 0xF0
    """The first byte of the payload says whether the transport takes more."""
    WAIT = 0xF1
    """Time goes on by two bytes of 10 ms."""
    BEGIN_DRAIN = 0xF2
    FINISH_DRAIN = 0xF3
    EXPIRE = 0xF4
    """Time goes on to the next deadline."""
    SEND = 0xF5
    """The handler of a number sends a message of two bytes' length."""
    FINISH = 0xF6
    """The handler of a number ends its call."""


def cut(wire: bytes) -> tuple[list[bytes], bytes]:
    """Whole frames, and what is left."""
    found, at = [], 0
    if wire.startswith(client.PREFACE):
        found, at = [client.PREFACE], len(client.PREFACE)
    while len(wire) - at >= 9:
        end = at + 9 + int.from_bytes(wire[at : at + 3], "big")
        if end > len(wire):
            break
        found.append(wire[at:end])
        at = end
    return found, wire[at:]


def parse(raw: bytes) -> Frame:
    """One whole frame."""
    kind, flags, stream_id = struct.unpack_from(">BBI", raw, 3)
    return Frame(kind, flags, stream_id & 0x7FFF_FFFF, raw[9:])


def build_wire(data: bytes) -> tuple[int, int, bytes]:
    """The seed of splits, the options, and what is sent."""
    split, options, wire = data[0], data[1], data[2:]
    if not options & RAW_HELLO:
        window = {"window": 0} if options & SHUT_WINDOWS else {}
        wire = client.PREFACE + client.settings(**window) + client.frame(client.SETTINGS, 1, 0) + wire
    return split, options, wire


# --- seeds ------------------------------------------------------------------------------------------


def command(kind: Command, payload: bytes = b"") -> bytes:
    return client.frame(kind, 0, 0, payload)


def _timed(timeout: str) -> tuple[tuple[str, str], ...]:
    return (*client.CALL, ("grpc-timeout", timeout))


def _build_split_block() -> bytes:
    block = hpack.Encoder().encode([*client.CALL, ("x-long", "v" * 300)])
    return (
        client.frame(client.HEADERS, 0, 1, block[:10])
        + client.frame(client.CONTINUATION, 0, 1, block[10:40])
        + client.frame(client.CONTINUATION, client.END_HEADERS, 1, block[40:])
    )


PARTS: Final[dict[str, bytes]] = {
    "call": client.headers(1),
    "second call": client.headers(3),
    "third call": client.headers(5, end=True),
    "timed": client.headers(7, _timed("20m")),
    "no call": client.headers(9, client.CALL[:-1]),
    "unknown method": client.headers(11, (*client.CALL[:2], (":path", "/x"), *client.CALL[3:])),
    "malformed": client.headers(13, client.CALL[1:]),
    "with a length": client.headers(15, (*client.CALL, ("content-length", "7"))),
    "in parts": _build_split_block(),
    "padded": client.frame(
        client.HEADERS, client.END_HEADERS | client.PADDED, 1, b"\x02" + client.block() + b"\0\0"
    ),
    "with priority": client.frame(
        client.HEADERS, client.END_HEADERS | client.PRIORITIES, 1, b"\0\0\0\x03\x10" + client.block()
    ),
    "indexed": client.frame(client.HEADERS, client.END_HEADERS, 1, hpack.Encoder().encode(client.CALL)),
    "table of 0": client.frame(client.HEADERS, client.END_HEADERS, 17, b"\x20" + client.block()),
    "table of 4096": client.frame(client.HEADERS, client.END_HEADERS, 19, b"\x3f\xe1\x1f" + client.block()),
    "echo": client.data(1, client.message(b"echo this")),
    "echo on 3": client.data(3, client.message(b"echo that") * 3),
    "quick": client.data(1, client.message(b"quick")),
    "large": client.data(1, client.message(b"big")),
    "many": client.data(1, client.message(b"many")),
    "end": client.data(1, client.message(b"finish")),
    "fault": client.data(1, client.message(b"x")),
    "cut message": client.data(1, client.message(b"echo cut")[:7]),
    "rest of it": client.data(1, client.message(b"echo cut")[7:]),
    "too large": client.data(1, b"\0\x7f\xff\xff\xff"),
    "compressed": client.data(1, client.message(b"x", 1)),
    "half close": client.data(1, b"", end=True),
    "padded data": client.frame(client.DATA, client.PADDED, 1, b"\x03" + client.message(b"e") + b"\0\0\0"),
    "full frame": client.data(1, client.message(b"echo" + b"." * 16_375)),
    "trailers": client.headers(1, (("t", "v"),), end=True),
    "trailers without end": client.headers(1, (("t", "v"),)),
    "reset": client.rst_stream(1),
    "reset of 3": client.rst_stream(3),
    "ping": client.ping(),
    "pong": client.ping(b"draining", client.ACK),
    "settings": client.settings(window=10, frame=20_000),
    "wide": client.settings(window=1 << 20),
    "shut": client.settings(window=0),
    "acknowledged": client.frame(client.SETTINGS, client.ACK, 0),
    "no table": client.settings(table=0),
    "window": client.window_update(0, 100_000),
    "window of 1": client.window_update(1, 5),
    "largest window": client.window_update(1, (1 << 31) - 1),
    "no window": client.window_update(1, 0),
    "priority": client.frame(client.PRIORITY, 0, 1, b"\0\0\0\x05\x10"),
    "priority on itself": client.frame(client.PRIORITY, 0, 1, b"\0\0\0\x01\x10"),
    "goaway": client.frame(client.GOAWAY, 0, 0, bytes(8)),
    "unknown": client.frame(0x42, 0xFF, 1, b"what"),
    "push": client.frame(client.PUSH_PROMISE, 4, 1, b"\0\0\0\x02"),
    "not writable": command(Command.WRITABLE, b"\0"),
    "writable": command(Command.WRITABLE, b"\1"),
    "wait": command(Command.WAIT, b"\0\x64"),
    "drain": command(Command.BEGIN_DRAIN),
    "drained": command(Command.FINISH_DRAIN),
    "deadline": command(Command.EXPIRE),
    "send": command(Command.SEND, b"\0\x01\x00"),
    "send much": command(Command.SEND, b"\0\xff\xff"),
    "finish": command(Command.FINISH, b"\0"),
}

_SESSIONS: Final = (
    "call, quick, quick, echo, quick, shut, quick, wide, quick, finish, quick",
    "call, echo, second call, echo on 3, large, window, half close, finish",
    "call, cut message, rest of it, many, end",
    "in parts, full frame, reset, ping, settings, third call",
    "padded, padded data, shut, echo, large, window of 1, wide, window, trailers",
    "call, not writable, echo, large, send much, ping, second call, writable, reset of 3, window of 1",
    "timed, call, echo, deadline, wait, deadline, deadline, deadline",
    "call, drain, second call, pong, echo, end, reset of 3",
    "call, goaway, echo, finish, drained",
    "no call, unknown method, malformed, with a length, too large",
    "indexed, echo, table of 0, no table, acknowledged, table of 4096",
    "with priority, priority, priority on itself, unknown, largest window, no window",
    "call, compressed, second call, half close, fault, trailers without end, push",
    "call, send, send much, shut, send, window, wide, finish, half close",
)


def seeds() -> list[bytes]:
    """Sessions with each option, and one of each part behind a call."""
    found = []
    for number, session in enumerate(_SESSIONS):
        wire = b"".join(PARTS[name.strip()] for name in session.split(","))
        found += [
            bytes((number, options)) + wire for options in (0, LOW_LIMITS, SHUT_WINDOWS, END_AT_HALF_CLOSE)
        ]
    found += [bytes((9, 0)) + PARTS["call"] + part + PARTS["ping"] for part in PARTS.values()]
    found.append(bytes((7, RAW_HELLO)) + client.HELLO + PARTS["call"])
    flood = b"".join(PARTS[name] for name in ("ping", "settings", "window of 1", "unknown"))
    found.append(bytes((1, LOW_LIMITS)) + PARTS["call"] + flood * 60)
    found.append(
        bytes((2, LOW_LIMITS))
        + b"".join(client.headers(one) + client.rst_stream(one) for one in range(1, 90, 2))
    )
    return found


# --- mutations --------------------------------------------------------------------------------------

Scramble = Callable[[bytes, int], bytes]
"""Changes bytes without knowing what they are."""


def mutate(data: bytes, most: int, rnd: random.Random, scramble: Scramble) -> bytes:
    """Change a session frame by frame, so that what is behind a change is still read."""
    if len(data) < 2:
        return seeds()[rnd.randrange(len(_SESSIONS))][:most]
    head = bytearray(data[:2])
    found, rest = cut(data[2:])
    for _ in range(rnd.choice((1, 1, 1, 2, 3, 5))):
        _change(found, rnd, scramble)
    if rnd.random() < 0.1:
        head[rnd.randrange(2)] = rnd.randrange(256)
    if rnd.random() < 0.05:
        rest = scramble(rest, 64)
    wire = b"".join(found)
    if rnd.random() < 0.03:
        wire = scramble(wire, most)
    return (bytes(head) + wire + rest)[:most]


def _change(found: list[bytes], rnd: random.Random, scramble: Scramble) -> None:
    what = rnd.randrange(10)
    at = rnd.randrange(len(found) + 1)
    if what <= 2 or at == len(found):
        found[at:at] = [rnd.choice(list(PARTS.values()))] * rnd.choice((1, 1, 1, 2, 8))
        if what == 0:
            found[at] = _move(found[at], rnd)
        return
    raw = found[at]
    if len(raw) < 9 or raw == client.PREFACE:
        del found[at]
        return
    if what == 3:
        del found[at]
    elif what == 4:
        found[at:at] = [raw] * rnd.choice((1, 2, 30))
    elif what == 5:
        other = rnd.randrange(len(found))
        found[at], found[other] = found[other], raw
    elif what == 6:
        found[at] = _move(raw, rnd)
    elif what == 7:
        flags = raw[4] ^ (1 << rnd.choice((0, 2, 3, 5, rnd.randrange(8))))
        found[at] = raw[:4] + bytes((flags,)) + raw[5:]
    elif what == 8:
        kind = rnd.choice((*range(11), rnd.randrange(256), *Command))
        found[at] = raw[:3] + bytes((kind,)) + raw[4:]
    else:
        payload = scramble(raw[9:], min(len(raw) + 40, 20_000))
        found[at] = len(payload).to_bytes(3, "big") + raw[3:9] + payload


def _move(raw: bytes, rnd: random.Random) -> bytes:
    """To another stream; a command to another handler."""
    if raw[3] >= Command.WRITABLE:
        return raw[:9] + bytes((rnd.randrange(6),)) + raw[10:] if len(raw) > 9 else raw
    stream_id = rnd.choice((0, 1, 2, 3, 5, 7, 9, 11, 21, rnd.randrange(1 << 31), 0x8000_0001))
    return raw[:5] + stream_id.to_bytes(4, "big") + raw[9:]
