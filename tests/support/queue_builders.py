"""Queues, rooms and newcomers for tests of admission, in the project's words."""

from itertools import count

from envoy_ext.domain.admission_queue import AdmissionQueue, QueuePolicy
from envoy_ext.domain.ids import AttemptId, OperationId, ReplicaId
from envoy_ext.domain.room import ReplicaRoom, Room
from envoy_ext.domain.ticket import Granted, Newcomer, Outcome, Shed, Waits
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses

_numbers = count(1)


def Req(
    name: str = "",
    *,
    of: str | None = None,
    caller: str = "",
    deadline: float | None = None,
    shortened: bool = False,
) -> Newcomer:
    return Newcomer(OperationId(name or f"op_{next(_numbers)}"), of, caller, deadline, shortened)


def Rep(name: str = "a", limit: int | None = 1, taken: int = 0, weight: int = 1) -> ReplicaRoom:
    return ReplicaRoom(ReplicaId(name), limit, taken, weight)


def R(*replicas: ReplicaRoom) -> Room:
    return Room(replicas)


FULL = R(Rep(limit=1, taken=1))
FREE = R(Rep(limit=1, taken=0))


def Queue(*classes: TrafficClass, length: int = 256, max_wait_s: float = 30.0) -> AdmissionQueue:
    return AdmissionQueue(QueuePolicy(length, TrafficClasses(classes, max_wait_s)))


def teach_rate(queue: AdmissionQueue, held_s: float, times: int = 16, now: float = 0.0) -> float:
    """Let so many requests hold a slot for so long, one after the other; the time behind them."""
    for _ in range(times):
        one = Req()
        assert isinstance(queue.arrive(one, FREE, now)[0], Granted)
        queue.start(one.operation_id)
        now += held_s
        queue.leave(one.operation_id, now)
    return now


def read_codes(outcomes: tuple[Outcome, ...]) -> list[str]:
    """What became of each, in a word: granted, waits or the code of its refusal."""
    words = {Granted: "granted", Waits: "waits"}
    return [one.code if isinstance(one, Shed) else words[type(one)] for one in outcomes]


def teach_answers(
    queue: AdmissionQueue,
    seconds: float,
    of: str | None = None,
    *,
    whole: bool = True,
    shortened: bool = False,
) -> None:
    """Let eight requests of a class hold a slot for so long at some time before, one after the other.

    The rate learns of it too.
    """
    for number in range(8):
        one = Newcomer(OperationId(f"op_{next(_numbers)}"), of, "", shortened=shortened)
        began = -1000.0 + number * seconds
        assert isinstance(queue.arrive(one, FREE, began)[0], Granted)
        queue.start(one.operation_id)
        queue.begin_answer(one.operation_id, AttemptId(one.operation_id), began)
        queue.end_answer(AttemptId(one.operation_id), began + seconds, whole=whole)
        queue.leave(one.operation_id, began + seconds)
