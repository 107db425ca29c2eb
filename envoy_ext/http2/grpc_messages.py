"""Messages of a gRPC call: five bytes in front of each, and any number of DATA frames for one of them."""

import struct
from collections.abc import Iterator
from typing import Final

from envoy_ext.http2.grpc_wire import CallFault, Status

PREFIX_BYTES: Final = 5
_unpack: Final = struct.Struct(">BI").unpack_from
pack_prefix: Final = struct.Struct(">BI").pack
"""A compressed-flag, and the message's length."""


_SMALL: Final = 512
"""Bytes of a part that is copied to those before it: kept as it is, it would cost many times its size."""


class Messages:
    """Cuts a call's bytes into messages; the cost of a large one grows with its length and no faster."""

    __slots__ = ("_largest", "_length", "_size", "parts")

    def __init__(self, largest: int) -> None:
        """`largest` bounds one message, in bytes."""
        self._largest = largest
        self.parts: list[bytes | bytearray] = []
        """What has come of a message that is not whole."""
        self._size = 0
        self._length = PREFIX_BYTES
        """How many bytes the parts must have before they are worth a look."""

    @property
    def is_between(self) -> bool:
        """Whether no message is begun."""
        return not self.parts

    @property
    def held(self) -> int:
        """Bytes of a message that is begun."""
        return self._size if self.parts else 0

    def drop(self) -> None:
        """Forget what was begun."""
        self.parts.clear()

    def read(self, data: bytes) -> Iterator[bytes]:
        """Messages that are whole with this.

        Raises:
            CallFault: one that is too large, or compressed.
        """
        if self.parts:
            self._keep(data)
            self._size += len(data)
            if self._size < self._length:
                return
            data = b"".join(self.parts)
            self.parts.clear()
        at, size = 0, len(data)
        while size - at >= PREFIX_BYTES:
            flag, length = _unpack(data, at)
            if flag:
                raise CallFault(Status.INTERNAL, "a message that says it is compressed")
            if length > self._largest:
                raise CallFault(Status.RESOURCE_EXHAUSTED, "a message larger than is taken")
            end = at + PREFIX_BYTES + length
            if end > size:
                break
            yield data[at + PREFIX_BYTES : end]
            at = end
        if at == size:
            self._size, self._length = 0, PREFIX_BYTES
            return
        self.parts.append(data[at:])
        self._size = size - at
        self._length = PREFIX_BYTES + (length if size - at >= PREFIX_BYTES else 0)

    def _keep(self, data: bytes) -> None:
        if len(data) >= _SMALL:
            self.parts.append(data)
            return
        last = self.parts[-1]
        if isinstance(last, bytearray):
            last += data
        else:
            self.parts.append(bytearray(data))
