"""How long a peer may be silent: before its hello, before its word on our SETTINGS, and at any time later.

The waits stand one behind the other, and only one runs. First the peer owes its preface and SETTINGS, then
the acknowledgement of ours (RFC 9113, section 6.5.3). From then on it owes nothing, and a silent one is asked
by a PING, whose answer shows that it is there. Any byte does, since a peer that speaks is there as well.

A byte moves no deadline. It is only noted, and looked at when the wait is over: there are thousands of them
for each wait.
"""

from enum import Enum
from typing import Final

from envoy_ext.http2.errors import ConnectionFault, ErrorCode
from envoy_ext.http2.limits import Limits

_LATE_S: Final = 1.0
"""Who looks so much later than it meant to was stopped itself, with the machine or alone, and has not heard
what came meanwhile."""
_ONCE_MORE_S: Final = 10.0
"""For that case: time to read it."""


class _Wait(Enum):
    """What the peer owes."""

    HELLO = "its hello"
    ACKNOWLEDGEMENT = "its word on our SETTINGS"
    NOTHING = "nothing"
    ANSWER = "an answer to our PING"


class Patience:
    """Of one connection. Does not begin by itself: who has no clock waits for ever."""

    __slots__ = ("_begun_at", "_limits", "_pinged_at", "_wait", "due", "heard_at")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._wait = _Wait.HELLO
        self._begun_at = self._pinged_at = 0.0
        self.due: float | None = None
        """When `expire` has something to do."""
        self.heard_at = 0.0
        """When the last bytes came."""

    def begin(self, now: float) -> None:
        """The peer can read what we have said."""
        self._begun_at = self.heard_at = now
        self.due = now + self._limits.hello_s

    def expire(self, now: float, *, is_ready: bool, is_acknowledged: bool) -> bool:
        """Look whether the peer has said what it owes; True when it is to be asked by a PING.

        Raises:
            ConnectionFault: it has not, and has had its time.
        """
        due, limits = self.due, self._limits
        if due is None or now < due:
            return False
        match self._wait:
            case _Wait.HELLO if is_ready:
                self._wait, self.due = _Wait.ACKNOWLEDGEMENT, self._begun_at + limits.settings_ack_s
                return False
            case _Wait.ACKNOWLEDGEMENT if is_acknowledged:
                self._wait = _Wait.NOTHING
            case _Wait.ANSWER if self.heard_at > self._pinged_at:
                self._wait = _Wait.NOTHING
            case _Wait.NOTHING:
                pass
            case _:
                if now > due + _LATE_S:
                    self.due = now + _ONCE_MORE_S
                    return False
                self.due = None
                raise self._build_fault()
        return self._wait_for_nothing(now)

    def _wait_for_nothing(self, now: float) -> bool:
        after_s = self._limits.ping_after_s
        if after_s is None:
            self.due = None
            return False
        if now < self.heard_at + after_s:
            self.due = self.heard_at + after_s
            return False
        self._wait, self._pinged_at = _Wait.ANSWER, now
        self.due = now + self._limits.ping_answer_s
        return True

    def _build_fault(self) -> ConnectionFault:
        match self._wait:
            case _Wait.HELLO:
                return ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no preface and SETTINGS in time")
            case _Wait.ACKNOWLEDGEMENT:
                return ConnectionFault(ErrorCode.SETTINGS_TIMEOUT, "our SETTINGS are not acknowledged")
            case _:
                # No rule is broken, and there is no code for it: streams may be tried again elsewhere.
                return ConnectionFault(ErrorCode.NO_ERROR, "nothing is heard, not even an answer to PING")
