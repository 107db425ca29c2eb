"""When a connection to a replica is given up, and when a lost one may be a cut network's doing.

A process that dies, and one that lets go, close their connections at any moment. A cut network closes
nothing: this side's kernel gives the connection up by itself, and only once nothing has come for so
long. Envoy tells all three in the same words. By the time the host can be asked, the network may be
whole again, and its port accepts: only a loss that comes sooner was the replica's own.

Silence is the kernel's to try, by keepalive. What was sent and is not confirmed it would send again for
15 minutes, and its own shorter limit (TCP_USER_TIMEOUT) counts the closed window of a stopped process
too. So that is judged here, by what the kernel says of its tries.
"""

from dataclasses import dataclass
from typing import Final

KEEPALIVE_IDLE_S: Final = 3
KEEPALIVE_EVERY_S: Final = 1
KEEPALIVE_PROBES: Final = 3
"""Silence during a prefill is tried after so long, so often, so many times."""

GIVEN_UP_S: Final = KEEPALIVE_IDLE_S + KEEPALIVE_EVERY_S * KEEPALIVE_PROBES
"""How long a cut goes unnoticed in silence at most, and what was sent must go unconfirmed: 6 s."""

UNCONFIRMED_LOOK_S: Final = 2.0
"""How often it is looked whether what was sent is confirmed. Each look costs a log entry of each attempt."""

UNANSWERED_RESENDS: Final = 3
"""A packet or two may be lost on any way; Linux resends after 0.2, 0.6, 1.4 and 3 s."""

UNANSWERED_PROBES: Final = 2

LATE_S: Final = 1.0
"""What is heard here was heard by the kernel a moment before; a busy process makes it a long one."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What this side's kernel knows of the other's: of its machine, whatever its program does."""

    silent_s: float
    """Since it was heard last, be it with a bare confirmation."""
    unconfirmed: int
    """Packets on their way to it."""
    resends: int
    """Of these, one after the other, with nothing confirmed."""
    probes: int
    """Of a silent connection, or of a closed window, that were not answered."""


def is_unconfirmed(told: Confirmation, waited_s: float) -> bool:
    """Whether the replica's machine answers nothing of a request that was sent so long ago.

    The machine of a stopped process goes on to answer. While its window is closed nothing is on its way,
    and it is probed ever less often: it may be silent for a minute, with no probe unanswered.
    """
    tried = told.unconfirmed > 0 and told.resends >= UNANSWERED_RESENDS
    probed = told.probes >= UNANSWERED_PROBES
    return (tried or probed) and min(told.silent_s, waited_s) >= GIVEN_UP_S - LATE_S


def may_be_a_cut(silent_s: float) -> bool:
    """Whether a connection that was silent for so long, and is lost, can have been given up by this side."""
    return silent_s >= GIVEN_UP_S - LATE_S
