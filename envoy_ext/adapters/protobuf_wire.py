"""The few pieces of protobuf's encoding that messages are put together from by hand.

https://protobuf.dev/programming-guides/encoding/: a field is a tag, which is its number and a type, and what
that type says; bytes, texts and messages have their length in front.
"""


def build_varint(value: int) -> bytes:
    """A whole number, seven bits in a byte, lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def build_field(number: int, content: bytes) -> bytes:
    """A field of bytes, a text or a message. The number is below 16."""
    size = len(content)
    if size < 0x80:
        return bytes((number << 3 | 2, size)) + content
    return bytes((number << 3 | 2,)) + build_varint(size) + content


def build_head(size: int, fields: tuple[int, ...]) -> bytes:
    """What stands before so many bytes that are fields within fields; `fields` from the inside outwards."""
    head = b""
    for field in fields:
        head = bytes((field << 3 | 2,)) + build_varint(size + len(head)) + head
    return head
