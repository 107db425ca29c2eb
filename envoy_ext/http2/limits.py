"""What a peer may cost: sizes, counts, and how often."""

from dataclasses import dataclass
from typing import Final

CLOSED_STREAMS_KEPT: Final = 1_000
"""How many ended streams are remembered, to tell a late frame from a wrong one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection. Each has a number at which a peer is told, or is let go."""

    max_frame_bytes: int = 16_384
    """The payload of one frame: the least that HTTP/2 lets an endpoint announce, and its default."""
    max_header_block_bytes: int = 16_384
    """One request's headers as they come, over HEADERS and all CONTINUATION."""
    max_header_list_bytes: int = 16_384
    """The same unpacked, each field with HPACK's 32 bytes on top: gRPC's own hard limit for metadata."""
    max_header_fields: int = 100
    max_continuations: int = 16
    """Frames of one header block; a block within its limit needs none."""
    max_settings: int = 32
    """Entries of one SETTINGS frame: nghttp2's number."""
    max_streams: int = 100_000
    """Open at once. Envoy opens three for a request, and refuses none by itself (its circuit breaker here is
    as wide)."""
    stream_window: int = 256 << 10
    """What a stream may have on its way to us, or with us and not taken."""
    connection_window: int = 512 << 20
    """The same over all streams: those of 2,048 clients that take nothing, while others go on."""
    max_unfinished_bytes: int = 512 << 20
    """Of messages that are not whole, over all streams: windows are given back for them, since a message may
    be larger than a window. A call that goes beyond is refused."""
    max_unsent_answers: int = 1_000
    """Acknowledgements and refusals that wait for a peer which reads nothing; nghttp2's number."""
    max_unread_frames: int = 100_000
    """Frames of ours of any kind but DATA that wait for such a peer: the ends of as many streams as there may
    be. An Envoy that is stopped sends nothing meanwhile, and is not asked."""
    output_batch_bytes: int = 256 << 10
    """DATA that is handed to a transport before it may say that it is full."""
    settings_frames: int = 20
    """SETTINGS that may come at once, and how many more a second: each may move every stream's window."""
    idle_frames: int = 10_000
    """Frames without any use (PING, PRIORITY, empty DATA, unknown ones) that may come at once, and
    how many more a second: a few per cent of one core."""
    window_updates: int = 20_000
    """The same of WINDOW_UPDATE. A peer that lets half a window pass sends far fewer; one that gives a byte
    at a time asks for a frame for each."""
    rapid_resets: int = 20_000
    """Streams that a peer opens and resets before it has been answered, at once and a second: the clients of
    thousands of waiting requests may leave together."""
    refusals: int = 20_000
    """Streams that have to be reset for what the peer did on them, at once and a second: the same by other
    means (CVE-2025-8671)."""
    hello_s: float = 10.0
    """From the connect to the peer's SETTINGS. gRPC's own server waits for 120 s, for networks; here the peer
    is on the same host."""
    settings_ack_s: float = 60.0
    """From the connect to the acknowledgement of our SETTINGS. An Envoy reads them within milliseconds. It
    is a minute for one that is stopped in between, which has streams already and costs little."""
    ping_after_s: float | None = 60.0
    """A peer that has said nothing for so long is asked whether it is there; None: never."""
    ping_answer_s: float = 180.0
    """How long it may then go on to say nothing. gRPC's own 20 s would end all streams of an Envoy that is
    stopped for half a minute (a debugger, a machine that moves, memory that is swapped), or so busy; what a
    dead one costs in three minutes is memory within these limits."""
