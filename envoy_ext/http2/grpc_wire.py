"""gRPC's own words over HTTP/2: status, timeout, percent-encoding, and which requests are calls at all.

Numbers and rules are those of the gRPC project's PROTOCOL-HTTP2.md and statuscodes.md.
"""

import re
from enum import IntEnum
from typing import Final

from envoy_ext.http2.header_blocks import RequestHeaders, build_block

CONTENT_TYPE: Final = "application/grpc"
_LONGEST_MESSAGE: Final = 1_024
"""Characters of a status message: it is for people, and has to fit into a frame."""


class Status(IntEnum):
    """A call's end."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFault(Exception):
    """A call that the server ends for its client's mistake; the text is fixed, and goes to the client."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")


def read_timeout_s(headers: RequestHeaders) -> float | None:
    """Seconds from `grpc-timeout`, None without one.

    Raises:
        CallFault: it is none. A call without the limit that its client meant would run for ever.
    """
    given = headers.fields.get("grpc-timeout")
    if given is None:
        return None
    found = _TIMEOUT.fullmatch(given)
    if found is None:
        raise CallFault(Status.INTERNAL, "a grpc-timeout that is none")
    return int(found[1]) * _UNITS_S[found[2]]


def check_encoding(headers: RequestHeaders) -> None:
    """No compression is spoken here.

    Raises:
        CallFault: the client is going to compress.
    """
    if headers.fields.get("grpc-encoding", "identity") != "identity":
        raise CallFault(Status.UNIMPLEMENTED, "messages are taken uncompressed")


def judge_request(headers: RequestHeaders) -> int:
    """200 for a gRPC call, else the HTTP status of its refusal."""
    content_type = headers.fields.get("content-type", "")
    rest = content_type.removeprefix(CONTENT_TYPE)
    if rest == content_type or (rest and rest[0] not in "+;"):
        return 415
    return 200 if headers.method == "POST" else 405


def build_refusal(http_status: int) -> bytes:
    """The whole answer to a request that is no call."""
    allow = [("allow", "POST")] if http_status == 405 else []
    return build_block(http_status, allow)


ANSWER_HEADERS: Final = build_block(200, [("content-type", CONTENT_TYPE)])
"""In front of the first message of every answer."""
OK_TRAILERS: Final = build_block(None, [("grpc-status", "0")])


def build_trailers(status: Status, message: str, *, alone: bool) -> bytes:
    """The end of a call; `alone` when nothing was sent before ("Trailers-Only")."""
    fields = [("grpc-status", str(int(status)))]
    if message:
        fields.append(("grpc-message", encode_message(message)))
    if status is Status.UNIMPLEMENTED:
        fields.append(("grpc-accept-encoding", "identity"))
    if alone:
        fields.insert(0, ("content-type", CONTENT_TYPE))
    return build_block(200 if alone else None, fields)


def encode_message(message: str) -> str:
    """Percent-encoded UTF-8: all but printable ASCII, and the percent sign itself; cut where it gets long."""
    encoded = ""
    for character in message[:_LONGEST_MESSAGE]:
        if " " <= character <= "~" and character != "%":
            encoded += character
        else:
            raw = character.encode("utf-8", "replace")
            encoded += "".join(f"%{byte:02X}" for byte in raw)
        if len(encoded) >= _LONGEST_MESSAGE:
            break
    return encoded.strip()  # a header's value has no blank at its ends
