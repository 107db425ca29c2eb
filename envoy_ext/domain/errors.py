"""Exceptions of the core; the class says whose fault it is.

Expected outcomes (a refusal, an upstream that broke) are values, not exceptions.
"""


class EnvoyExtError(Exception):
    """Base of every exception this project raises on purpose."""


class ImpossibleEvent(EnvoyExtError):
    """A state machine received an event its table has no row for: a bug of ours.

    Loud in tests; contained in production by ending the one exchange it happened in.
    """


class PeerViolation(EnvoyExtError):
    """Envoy or an engine broke the protocol it speaks with us."""


class JournalUnavailable(EnvoyExtError):
    """A journal append or lookup could not be done; the caller's policy decides what follows."""


class StoreSilent(JournalUnavailable):
    """The store has left an earlier call without an answer, and was not asked again: nothing was done."""


class NotOwner(EnvoyExtError):
    """Another gateway has taken the operation over: nothing was written, and this one may do no more."""


class SeatLost(EnvoyExtError):
    """The other gateways have found this one gone: what it owned is theirs, and it needs another seat."""


class RunNotOver(EnvoyExtError):
    """A job cannot be given back: its run has begun and not ended. Nothing was written."""


class CannotListen(EnvoyExtError):
    """An address of the configuration cannot be listened at; the message says which key gave it."""


class ConfigError(EnvoyExtError):
    """The configuration cannot be used. `mistakes` holds one printable line for each fault."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes
