"""Error codes of HTTP/2, and whose mistake costs how much: a stream, or the whole connection."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionFault(Exception):
    """The peer broke a rule of the connection: GOAWAY, and nothing it sends is read (section 5.4.1)."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        """A fixed text: it goes to the peer and into a log, and never holds what the peer sent."""


class StreamFault(Exception):
    """The peer broke a rule of one stream: RST_STREAM, and the others go on (section 5.4.2)."""

    def __init__(self, stream_id: int, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.stream_id = stream_id
        self.code = code
        self.detail = detail
