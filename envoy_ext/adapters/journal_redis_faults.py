"""What went wrong at a Redis journal, in words: the place and the mend.

Never a password, and never what a record holds.
"""

import os
import re
import ssl
from typing import Final

from redis import exceptions
from redis.asyncio.sentinel import MasterNotFoundError

from envoy_ext.adapters.journal_redis_scripts import LATER_SCHEMA, SCHEMA_VERSION
from envoy_ext.domain.errors import JournalUnavailable

_LOOK_AT: Final = (
    "see whether it runs, journal.url, and for a server that asks for a certificate: journal.cert_file"
)
_LONGEST: Final = 200
"""Of a server's own words."""
_MENDS: Final = {
    "WRONGPASS": "the user name or the password is wrong: see journal.username and journal.password_file",
    "NOAUTH": "it asks for a password: set journal.password_file",
    "NOPERM": "its ACL does not let this user do all it needs: docs/stores.md has the line that does",
    "READONLY": "it is a replica, which takes no writes: name the master, or sentinels (journal.sentinel)",
    "OOM": "its memory is full (maxmemory): give it more",
    "LOADING": "it is still loading its data: wait until it has started",
    "MISCONF": "it cannot write to its disk and takes no writes: free space there, or see its log",
    "WRONGTYPE": "another program's data stands under the journal's keys: name another journal.prefix",
    "NOREPLICAS": "it has fewer replicas than its own min-replicas-to-write asks for: start them",
    "MASTERDOWN": "it is a replica that has lost its master: name the master, or the sentinels",
    "CLUSTERDOWN": "the cluster is down: see CLUSTER INFO",
    "MOVED": "it is a node of a Redis Cluster: set journal.cluster: true",
    "ASK": "the slot of the journal is being moved to another node: wait until it is",
    "TRYAGAIN": "the slot of the journal is being moved to another node: wait until it is",
    "BUSY": "it is busy with another program's script: end that by SCRIPT KILL",
    "CROSSSLOT": "the keys of the journal are not in one slot: a proxy before it may change their names",
}
_CODE: Final = re.compile(rf"\b({'|'.join(_MENDS)})\b")
_REFUSED: Final = re.compile(r"no permissions to run the '([a-z|]+)' command")
_BY_TYPE: Final[tuple[tuple[type[Exception], str], ...]] = (
    # redis-py takes the code off the text of these.
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)


def build_unavailable(place: str, what: str, fault: Exception) -> JournalUnavailable:
    """`JournalUnavailable` for a fault of the server, or of the way to it; `place` names it to people."""
    unavailable = JournalUnavailable(f"the journal at {place} cannot be {what}: {explain_fault(fault)}")
    unavailable.__cause__ = fault
    return unavailable


def explain_fault(fault: Exception) -> str:
    """What went wrong and, where one is known, the mend."""
    if isinstance(fault, JournalUnavailable):
        return str(fault)
    if isinstance(fault, MasterNotFoundError):
        return "no sentinel that was asked knows a master of this service: see journal.sentinel"
    if isinstance(fault, exceptions.AuthenticationError):
        code = "NOAUTH" if "authentication required" in str(fault).lower() else "WRONGPASS"
        return f"{code}: {_MENDS[code]}"
    if isinstance(fault, TimeoutError | exceptions.TimeoutError):
        return "no answer in time: see whether it runs, the network, and with TLS whether this port speaks it"
    if (reason := _find_tls_fault(fault)) is not None:
        return f"TLS failed: {reason}: see journal.ca_file, and whether the server speaks TLS at this port"
    known = read_code(fault)
    if known == "NOPERM" and (named := _REFUSED.search(str(fault))) is not None:
        return explain_denied(named[1])
    if known is not None:
        return f"{known}: {_MENDS[known]}"
    text = str(fault)
    if "Cluster mode is not enabled" in text or "cluster support disabled" in text:
        # The client says so too where CLUSTER SLOTS is refused.
        return (
            "it is no node of a Redis Cluster: remove journal.cluster; "
            "or its ACL does not let this user run CLUSTER SLOTS: docs/stores.md has the line that does"
        )
    if isinstance(fault, exceptions.ResponseError):
        return _explain_answer(text)
    if isinstance(fault, exceptions.ConnectionError | OSError | exceptions.RedisClusterException):
        return f"{_find_system_fault(fault) or _shorten(text)} ({_LOOK_AT})"
    return type(fault).__name__


def read_code(fault: Exception) -> str | None:
    """The word by which Redis names a fault; None for one that has none of those known here."""
    for kind, code in _BY_TYPE:
        if isinstance(fault, kind):
            return code
    if not isinstance(fault, exceptions.ResponseError):
        return None
    text = str(fault)
    if "unauthenticated" in text:  # of a request that is too long for somebody who is not logged in
        return "NOAUTH"
    found = _CODE.search(text)
    if found is not None:
        return found[1]
    # So Redis 7.0 says NOPERM from within a script.
    return "NOPERM" if "user executing the script" in text or "no permissions" in text else None


def explain_probe(command: str, answer: str) -> str:
    """Why a command of the scripts cannot be run."""
    fault = exceptions.ResponseError(answer)
    return explain_denied(command) if read_code(fault) == "NOPERM" else explain_fault(fault)


def explain_denied(command: str) -> str:
    """Why a command cannot be run that the user has no right to, or not on these keys."""
    return (
        f"NOPERM: its ACL does not let this user run {command.upper()} on the journal's keys: "
        "docs/stores.md has the line that does"
    )


def _explain_answer(text: str) -> str:
    if text.startswith(LATER_SCHEMA):
        found = text.removeprefix(LATER_SCHEMA).strip()
        return (
            f"it has schema {found}, this program knows up to {SCHEMA_VERSION}: "
            "run the later release that wrote it, or name another journal.prefix"
        )
    # What follows repeats the arguments of the command, and a record may be one of them.
    return f"it answered: {_shorten(text.partition(', with args beginning')[0])}"


def _find_tls_fault(fault: BaseException | None) -> str | None:
    while fault is not None:
        if isinstance(fault, ssl.SSLError):
            return fault.reason or "refused"
        fault = fault.__cause__ or fault.__context__
    return None


def _find_system_fault(fault: BaseException | None) -> str | None:
    """In the system's own words, such as "Connection refused"; None where it has said nothing."""
    while fault is not None:
        if isinstance(fault, OSError) and fault.errno is not None:
            # Numbers below 0 are those of name resolution.
            return os.strerror(fault.errno) if fault.errno > 0 else fault.strerror
        fault = fault.__cause__ or fault.__context__
    return None


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
