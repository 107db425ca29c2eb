"""The life of a replica as a table: states, what moves it, and nothing about why.

Two machines make a replica's readiness. The latches (`signals`, held by `readiness`) say which
reasons stand. This one says what a replica is:

    DISCOVERED ──heard──> STARTING ──fit──> WARMING ──ramped──> READY <──fit── SATURATED
                             ^                 ^                  │ full ────────^
       restarted, unproven ──┘                 └───fit── UNREADY <┘ unfit
                                                            ^
              any ──drain──> DRAINING ──undrain─────────────┘         any ──removed──> GONE

They touch in one place. Whatever stands at the moment is summed up in one *condition*, and exactly
one of the four holds at any time: UNPROVEN (its model has not answered in this incarnation), UNFIT
(proven, and something is wrong), FULL (proven and sound, at its limit), FIT. After every *occurrence*
(something that happens once) the condition is applied until it moves nothing more. So an undrained
replica passes through UNREADY to where it belongs, within the same event.

Three rules the table holds:

* Only an order ends in DRAINING or GONE, and nothing but another order leaves them: whatever signals
  say of a replica that an operator took out, it stays out.
* A replica comes back into service through WARMING (slow start), except from SATURATED: being full
  is the opposite of being cold.
* FULL never leads to UNREADY: load does not make a replica dead.
"""

from enum import StrEnum
from typing import Final


class ReplicaState(StrEnum):
    """What a replica is."""

    DISCOVERED = "discovered"
    """Listed; nobody has looked yet."""
    STARTING = "starting"
    """Not proven in this incarnation: loading, or its control call has not passed."""
    WARMING = "warming"
    """Gets a growing share."""
    READY = "ready"
    SATURATED = "saturated"
    """Works, and is full: no new work while another replica can take it."""
    DRAINING = "draining"
    """Ends its streams and gets no new work, by somebody's order."""
    UNREADY = "unready"
    GONE = "gone"
    """Not there any more, by the orchestrator's or the configuration's word."""


class LifeSignal(StrEnum):
    """What moves a replica from state to state."""

    DISCOVERED = "discovered"
    HEARD = "heard"
    """A first look took place, whatever it gave."""
    RESTARTED = "restarted"
    RAMPED = "ramped"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    REMOVED = "removed"
    UNPROVEN = "unproven"
    UNFIT = "unfit"
    FULL = "full"
    FIT = "fit"


CONDITIONS: Final = frozenset({LifeSignal.UNPROVEN, LifeSignal.UNFIT, LifeSignal.FULL, LifeSignal.FIT})
SERVING: Final = frozenset({ReplicaState.WARMING, ReplicaState.READY})
"""States in which a replica gets new work."""

_S, _L = ReplicaState, LifeSignal
_ORDERS: Final = {_L.DRAIN: _S.DRAINING, _L.REMOVED: _S.GONE}
_AGAIN: Final = {_L.RESTARTED: _S.STARTING, _L.UNPROVEN: _S.STARTING}

TRANSITIONS: Final[dict[ReplicaState, dict[LifeSignal, ReplicaState]]] = {
    # A first control call may pass before the first look: what is proven need not wait for it.
    _S.DISCOVERED: {
        **_ORDERS,
        _L.HEARD: _S.STARTING,
        _L.RESTARTED: _S.STARTING,
        _L.UNFIT: _S.UNREADY,
        _L.FULL: _S.SATURATED,
        _L.FIT: _S.WARMING,
    },
    _S.STARTING: {**_ORDERS, _L.UNFIT: _S.UNREADY, _L.FULL: _S.SATURATED, _L.FIT: _S.WARMING},
    _S.WARMING: {**_ORDERS, **_AGAIN, _L.RAMPED: _S.READY, _L.UNFIT: _S.UNREADY, _L.FULL: _S.SATURATED},
    _S.READY: {**_ORDERS, **_AGAIN, _L.UNFIT: _S.UNREADY, _L.FULL: _S.SATURATED},
    _S.SATURATED: {**_ORDERS, **_AGAIN, _L.UNFIT: _S.UNREADY, _L.FIT: _S.READY},
    _S.UNREADY: {**_ORDERS, **_AGAIN, _L.FULL: _S.SATURATED, _L.FIT: _S.WARMING},
    _S.DRAINING: {_L.REMOVED: _S.GONE, _L.UNDRAIN: _S.UNREADY},
    _S.GONE: {_L.DISCOVERED: _S.DISCOVERED},
}
"""A signal a state does not name leaves it as it is."""


def move(state: ReplicaState, signal: LifeSignal) -> ReplicaState:
    """The state that follows, by the table."""
    return TRANSITIONS[state].get(signal, state)


def settle(state: ReplicaState, condition: LifeSignal) -> ReplicaState:
    """Apply a condition until it moves nothing more. The longest way is two moves; the table has no ring."""
    following = move(state, condition)
    while following is not state:
        state, following = following, move(following, condition)
    return state
