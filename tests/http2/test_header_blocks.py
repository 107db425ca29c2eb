"""Headers of requests: which are good, how they come together, what they may cost (RFC 9113, section 8)."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.http2 import header_blocks
from envoy_ext.http2.errors import ErrorCode
from envoy_ext.http2.events import RequestStarted
from envoy_ext.http2.header_blocks import RequestHeaders, build_block
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client
from tests.support.http2_play import Play


def read(play: Play, *parts: bytes) -> RequestHeaders:
    play.connection.receive(b"".join(parts), play.now)
    (event,) = play.connection.take_events()
    assert isinstance(event, RequestStarted)
    return event.headers


def with_field(name: str, value: str) -> tuple[tuple[str, str], ...]:
    return (*client.CALL, (name, value))


MALFORMED = {
    "capitals": with_field("Role", "a"),
    "empty name": with_field("", "a"),
    "blank in a name": with_field("a b", "a"),
    "line feed in a value": with_field("a", "b\nc"),
    "zero in a value": with_field("a", "b\0c"),
    "blank before a value": with_field("a", " b"),
    "blank behind a value": with_field("a", "b\t"),
    "connection": with_field("connection", "close"),
    "transfer-encoding": with_field("transfer-encoding", "chunked"),
    "te": with_field("te", "gzip"),
    "pseudo-header of an answer": ((":status", "200"), *client.CALL),
    "unknown pseudo-header": ((":role", "a"), *client.CALL),
    "two methods": ((":method", "POST"), *client.CALL),
    "pseudo-header behind a header": with_field(":authority", "b"),
    "no method": client.CALL[1:],
    "no scheme": client.CALL[:1] + client.CALL[2:],
    "no path": client.CALL[:2] + client.CALL[3:],
    "empty path": (*client.CALL[:2], (":path", ""), *client.CALL[3:]),
    "line feed in a path": (*client.CALL[:2], (":path", "/a\nb"), *client.CALL[3:]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_reset(name: str) -> None:
    Play().opened().resets_with(ErrorCode.PROTOCOL_ERROR, client.headers(1, MALFORMED[name]))


@pytest.mark.parametrize(
    "trailer", [(":path", "/"), ("Capital", "a"), ("connection", "close")], ids=lambda pair: pair[0]
)
def test_malformed_trailers_reset_their_stream(trailer: tuple[str, str]) -> None:
    trailers = client.headers(1, (trailer,), end=True)
    Play().opened().resets_with(ErrorCode.PROTOCOL_ERROR, client.headers(1), trailers)


def test_a_refused_request_leaves_the_compression_in_order() -> None:
    """Its block changed the table that the next one refers to."""
    play, encoder = Play(Limits(max_streams=1)).opened(), hpack.Encoder()
    first = client.frame(client.HEADERS, client.END_HEADERS, 1, encoder.encode(client.CALL))
    refused = client.frame(
        client.HEADERS, client.END_HEADERS, 3, encoder.encode(with_field("x-envoy-ext-role", "attempt"))
    )
    play.resets_with(ErrorCode.REFUSED_STREAM, first, refused, stream_id=3)
    play.send(client.rst_stream(1))
    block = encoder.encode(with_field("x-envoy-ext-role", "attempt"))
    headers = read(play, client.frame(client.HEADERS, client.END_HEADERS, 5, block))
    assert headers.fields["x-envoy-ext-role"] == "attempt"


def test_a_request_behind_our_goodbye_leaves_the_compression_in_order() -> None:
    play, encoder = Play().opened(), hpack.Encoder()
    play.send(client.frame(client.HEADERS, client.END_HEADERS, 1, encoder.encode(client.CALL)))
    play.connection.finish_drain()
    late = encoder.encode(with_field("x-late", "1"))
    assert play.send(client.frame(client.HEADERS, client.END_HEADERS, 3, late)) == []
    play.read()
    oldest = encoder.encode([(":path", client.METHOD)])
    assert len(oldest) == 1
    trailers = client.frame(client.HEADERS, client.END_HEADERS | client.END_STREAM, 1, oldest)
    # A place in the table that there is only if it has grown; and no trailer.
    play.resets_with(ErrorCode.PROTOCOL_ERROR, trailers)


def test_headers_as_they_are_read() -> None:
    fields = (*client.CALL, ("x-a", "1"), ("x-b", "\xe9"), ("x-a", "2"))
    headers = read(Play().opened(), client.headers(1, fields))
    assert (headers.method, headers.path, headers.authority) == ("POST", client.METHOD, "test")
    assert dict(headers.fields) == {
        "te": "trailers",
        "content-type": "application/grpc",
        "x-a": "1,2",
        "x-b": "\xe9",
    }
    assert headers.content_length is None


@given(st.data())
def test_a_block_may_be_cut_anywhere(data: st.DataObject) -> None:
    """HEADERS and CONTINUATION, also empty ones."""
    block = client.block()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(block)), max_size=8)))
    pieces = [block[a:b] for a, b in zip([0, *cuts], [*cuts, len(block)], strict=True)]
    frames = [
        client.frame(
            client.CONTINUATION if number else client.HEADERS,
            (client.END_HEADERS if number == len(pieces) - 1 else 0) | (0 if number else client.END_STREAM),
            1,
            piece,
        )
        for number, piece in enumerate(pieces)
    ]
    assert Play().opened().send(*frames) == [("request", 1, client.METHOD, True)]


@pytest.mark.parametrize(
    "between",
    [
        client.data(1, b"x"),
        client.ping(),
        client.headers(3),
        client.frame(client.CONTINUATION, client.END_HEADERS, 3),
        client.frame(0x44, 0, 0),
        client.settings(),
    ],
    ids=["data", "ping", "headers", "continuation of another", "unknown", "settings"],
)
def test_nothing_comes_inside_a_block(between: bytes) -> None:
    begin = client.frame(client.HEADERS, 0, 1, client.block()[:5])
    Play().opened().fails_with(ErrorCode.PROTOCOL_ERROR, begin, between)


def test_data_on_an_open_stream_is_not_let_into_another_ones_block() -> None:
    begin = client.frame(client.HEADERS, 0, 3, client.block()[:5])
    Play().opened().fails_with(ErrorCode.PROTOCOL_ERROR, client.headers(1), begin, client.data(1, b"inside"))


def test_a_block_in_too_many_frames() -> None:
    empty = client.frame(client.CONTINUATION, 0, 1)
    begin = client.frame(client.HEADERS, 0, 1, client.block())
    Play().opened().fails_with(ErrorCode.ENHANCE_YOUR_CALM, begin, empty * 17)


def test_each_block_has_its_own_number_of_frames() -> None:
    play = Play().opened()
    for number in (1, 3, 5):
        begin = client.frame(client.HEADERS, 0, number, client.block())
        empty = client.frame(client.CONTINUATION, 0, number) * 9
        end = client.frame(client.CONTINUATION, client.END_HEADERS, number)
        assert play.send(begin, empty, end) == [("request", number, client.METHOD, False)]


def test_a_block_that_is_too_long() -> None:
    begin = client.frame(client.HEADERS, 0, 1, b"\x00" * 16_000)
    Play().opened().fails_with(
        ErrorCode.ENHANCE_YOUR_CALM, begin, client.frame(client.CONTINUATION, 0, 1, b"\x00" * 400)
    )


def test_a_short_block_that_unpacks_to_a_long_list() -> None:
    """An entry of the table, referred to again and again."""
    encoder = hpack.Encoder()
    block = encoder.encode(with_field("x-bomb", "x" * 3_000)) + b"\xbe" * 200
    assert len(block) < 4_000
    Play().opened().fails_with(
        ErrorCode.ENHANCE_YOUR_CALM, client.frame(client.HEADERS, client.END_HEADERS, 1, block)
    )


def test_more_headers_than_are_taken() -> None:
    fields = (*client.CALL, *((f"x-{number}", "1") for number in range(100)))
    Play().opened().resets_with(ErrorCode.ENHANCE_YOUR_CALM, client.headers(1, fields))


# --- what is read once ----------------------------------------------------------------------------

ACK = client.frame(client.SETTINGS, client.ACK, 0)
NO_TABLE = b"\x20"


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    seen: list[bytes] = []
    check = header_blocks._check_request

    def counted(fields: list[tuple[bytes, bytes]], stream_id: int, most: int) -> RequestHeaders:
        seen.append(b"")
        return check(fields, stream_id, most)

    monkeypatch.setattr(header_blocks, "_check_request", counted)
    return seen


def ask(play: Play, numbers: list[int], block: bytes) -> None:
    for number in numbers:
        headers = read(play, client.frame(client.HEADERS, client.END_HEADERS, number, block))
        assert headers.path == client.METHOD


def test_a_block_without_a_table_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, play = count_reads(monkeypatch), Play().opened()
    play.send(ACK)
    ask(play, [1], NO_TABLE + client.block())
    ask(play, [3, 5, 7], client.block())
    assert len(reads) == 2


@pytest.mark.parametrize(
    ("hello", "first"),
    [(b"", NO_TABLE), (ACK, b"")],
    ids=["not acknowledged", "acknowledged, and the table is kept"],
)
def test_a_block_is_read_anew_while_there_is_a_table(
    hello: bytes, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, play = count_reads(monkeypatch), Play().opened()
    play.send(hello)
    ask(play, [1], first + client.block())
    ask(play, [3, 5], client.block())
    assert len(reads) == 3


def test_a_table_that_is_gone_does_not_come_back() -> None:
    play = Play().opened()
    play.send(ACK)
    ask(play, [1], NO_TABLE + client.block())
    bigger = client.frame(client.HEADERS, client.END_HEADERS, 3, b"\x3f\xe1\x1f" + client.block())
    play.fails_with(ErrorCode.COMPRESSION_ERROR, bigger)


def test_a_table_is_followed_until_the_client_has_put_it_away() -> None:
    """Envoy goes on with its table for a few blocks behind its acknowledgement."""
    play, encoder = Play().opened(), hpack.Encoder()
    play.send(ACK)
    for number in (1, 3, 5):
        ask(play, [number], encoder.encode(client.CALL))
    encoder.header_table_size = 0
    ask(play, [7, 9], encoder.encode(client.CALL))


def test_few_blocks_are_kept() -> None:
    reader = header_blocks.HeaderReader(Limits())
    reader.note_settings_acknowledged()
    reader.read_request(NO_TABLE + client.block(), 1)
    for number in range(400):
        reader.read_request(client.block(with_field("x-id", str(number))), 3)
    reader.read_request(client.block(with_field("x-id", "x" * 2_000)), 3)
    assert len(reader._kept) == 256


# --- ours -----------------------------------------------------------------------------------------


@given(
    st.one_of(st.none(), st.integers(100, 599)),
    st.lists(
        st.tuples(st.from_regex(r"[a-z-]{1,300}", fullmatch=True), st.text(st.characters(max_codepoint=255)))
    ),
)
def test_our_blocks_are_read_as_they_were_meant(status: int | None, fields: list[tuple[str, str]]) -> None:
    expected = [] if status is None else [(b":status", str(status).encode())]
    expected += [(name.encode(), value.encode("latin-1")) for name, value in fields]
    decoder = hpack.Decoder(1 << 30)
    decoder.header_table_size = 0
    found = decoder.decode(build_block(status, fields), raw=True)
    assert [(bytes(name), bytes(value)) for name, value in found] == expected
