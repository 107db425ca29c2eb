"""However the bytes of a client are cut, the same happens, and the same is answered."""

import random
from typing import Any

import hpack
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.http2.connection import Connection
from envoy_ext.http2.events import DataReceived
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client
from tests.support.http2_play import Play, describe

LIMITS = Limits(stream_window=65_535, connection_window=200_000)


def record(seed: int) -> bytes:
    """What a client sends over a few streams, with everything that a frame can have."""
    rnd, encoder = random.Random(seed), hpack.Encoder()
    out = [client.PREFACE, client.settings(window=1 << 20), client.frame(client.SETTINGS, client.ACK, 0)]
    open_streams: dict[int, int] = {}
    next_id = 1
    for _ in range(60):
        kind = rnd.randrange(12)
        if kind <= 2 or not open_streams:
            block = encoder.encode([*client.CALL, ("x-n", str(next_id))])
            cut = rnd.randrange(len(block) + 1)
            if rnd.random() < 0.5:
                out += [
                    client.frame(client.HEADERS, 0, next_id, block[:cut]),
                    client.frame(client.CONTINUATION, client.END_HEADERS, next_id, block[cut:]),
                ]
            else:
                flags = client.END_HEADERS | client.PADDED
                out.append(client.frame(client.HEADERS, flags, next_id, b"\x04" + block + b"\0" * 4))
            open_streams[next_id] = 0
            next_id += 2
            continue
        number = rnd.choice(list(open_streams))
        size = rnd.choice([0, 1, 5, 100, 3_000, 16_000])
        if open_streams[number] + size > 60_000:
            size = 0
        open_streams[number] += size
        if kind <= 6:
            out.append(client.data(number, rnd.randbytes(size)))
        elif kind == 7:
            out.append(client.frame(client.DATA, client.PADDED, number, b"\x05" + b"d" * 7 + b"\0" * 5))
        elif kind == 8:
            out += [client.ping(rnd.randbytes(8)), client.window_update(0, 5), client.frame(0x99, 0, 0, b"u")]
        elif kind == 9:
            out += [client.data(number, b"end", end=True)]
            del open_streams[number]
        elif kind == 10:
            out.append(client.rst_stream(number))
            del open_streams[number]
        else:
            out.append(client.headers(number, (("trailer", "1"),), end=True))
            del open_streams[number]
    if seed % 3 == 0:
        out.append(client.ping(b"short"))  # and something that cannot be
    return b"".join(out)


def play(pieces: list[bytes]) -> tuple[list[tuple[Any, ...]], bytes]:
    """Everything that happens, and everything that is sent; each body is taken as it comes."""
    one, events, output = Play(LIMITS), [], b""
    for piece in pieces:
        one.connection.receive(piece, 0.0)
        for event in one.connection.take_events():
            if isinstance(event, DataReceived):
                one.connection.take(event.stream, len(event.data))
            events.append(event)
        output += one.connection.take_output()
    return [describe(event) for event in events], output


def without_windows(output: bytes) -> list[client.Frame]:
    return [one for one in client.Reader().read(output) if one.kind != client.WINDOW_UPDATE]


@given(st.integers(0, 1_000), st.data())
def test_any_split_gives_the_same_events(seed: int, data: st.DataObject) -> None:
    recorded = record(seed)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(recorded)), max_size=40)))
    pieces = [recorded[a:b] for a, b in zip([0, *cuts], [*cuts, len(recorded)], strict=True)]
    events, output = play(pieces)
    whole_events, whole_output = play([recorded])
    assert events == whole_events
    assert without_windows(output) == without_windows(whole_output)


def test_byte_by_byte() -> None:
    for seed in (1, 2, 3):
        recorded = record(seed)
        events, output = play([recorded[at : at + 1] for at in range(len(recorded))])
        whole_events, whole_output = play([recorded])
        assert len(whole_events) > 20
        assert events == whole_events
        assert without_windows(output) == without_windows(whole_output)


def test_a_frame_that_comes_byte_by_byte_is_copied_a_few_times_and_not_once_for_each_byte() -> None:
    """Counted in calls that look at more than one byte: a time would say how busy the machine is."""
    connection = Connection()
    connection.receive(client.HELLO + client.headers(1), 0.0)
    looks = 0
    read = connection._read

    def counted(data: bytes, now: float) -> int:
        nonlocal looks
        looks += 1
        return read(data, now)

    connection._read = counted  # type: ignore[method-assign]
    frame = client.data(1, b"x" * 16_384)
    for at in range(len(frame)):
        connection.receive(frame[at : at + 1], 0.0)
    assert len(connection.take_events()) == 2
    assert looks == 3  # its first byte, its header, the whole


@given(st.integers(0, 200), st.data())
def test_nothing_that_a_client_sends_is_more_than_a_fault(seed: int, data: st.DataObject) -> None:
    """Bytes changed, left out or put in: no exception, and what is answered are whole frames."""
    recorded = bytearray(record(seed))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(24, len(recorded) - 1))
        kind = data.draw(st.integers(0, 2))
        if kind == 0:
            recorded[at] = data.draw(st.integers(0, 255))
        elif kind == 1:
            del recorded[at : at + data.draw(st.integers(1, 20))]
        else:
            recorded[at:at] = data.draw(st.binary(max_size=20))
        if len(recorded) < 30:
            break
    _, output = play([bytes(recorded)])
    reader = client.Reader()
    reader.read(output)
    assert reader.is_at_a_frames_end
