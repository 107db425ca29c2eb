"""A whole answer as a store keeps it: to be given again, never to be looked into."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An HTTP answer that ended: of an operation, or of a tool's call.

    Its body is a client's or a tool's own matter. No log, listing or export shows it.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    """In their order; names in lower case."""
    body: bytes = field(repr=False)
