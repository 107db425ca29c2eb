"""Who waits, and who is next: a line in which neither a class nor a caller can crowd the others out.

Three orders, one inside the other:

* classes of a higher priority come first, for as long as one of theirs waits;
* classes of one priority are served in the proportion of their weights, by stride scheduling
  (Waldspurger and Weihl, 1995): each has a `tag` that grows by 1/weight with each of its own that is
  served, and the lowest tag is next. While two classes both have somebody waiting, what each was
  served, divided by its weight, differs by no more than one over the smaller weight and one over the other;
* inside a class the callers take turns, one request each, and a caller's own come in their order.

When the line is full, the same measure says who must go: the newest request of the caller that has
most in the class that has most for its weight (fq_codel drops from the fattest flow likewise). Order in
the line would be worth little without that: of a line that one caller keeps full, others see the end.

Tags are whole numbers, so that equal shares are equal. A class that was idle starts where the others
are: it has saved nothing up.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from math import lcm

from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses


@dataclass(slots=True)
class _Lane:
    """One class: its callers in the order of their turns, each with its requests in their order."""

    traffic: TrafficClass
    place: int
    """In the configuration; decides between equals."""
    stride: int
    tag: int = 0
    callers: OrderedDict[str, OrderedDict[OperationId, None]] = field(default_factory=OrderedDict)
    count: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    """How many callers have so many waiting. A refusal is asked for most when there is least time for it: it
    must not look at everybody who waits."""

    def read_size(self) -> int:
        """How much it has waiting, for its weight."""
        return self.count * self.stride

    def resize(self, before: int, after: int) -> None:
        """A caller has another number of requests waiting."""
        self.count += after - before
        for size, change in ((before, -1), (after, 1)):
            self.sizes[size] += change
            if size == 0 or not self.sizes[size]:
                del self.sizes[size]

    def find_fattest(self) -> str:
        """The caller that has most waiting; of equals the one whose turn is last."""
        most = max(self.sizes)
        return next(one for one, requests in reversed(self.callers.items()) if len(requests) == most)


class FairLine:
    """The requests that wait for one pool; changed only by its queue."""

    def __init__(self, classes: TrafficClasses) -> None:
        self._classes = classes
        listed = list(classes)
        unit = lcm(*(one.weight for one in listed))
        self._lanes = {one.name: _Lane(one, place, unit // one.weight) for place, one in enumerate(listed)}
        self._times: dict[int, int] = {one.priority: 0 for one in listed}
        """By priority, the tag of whoever was served last."""
        self._where: dict[OperationId, tuple[_Lane, str]] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, request: OperationId) -> bool:
        return request in self._where

    def count(self, class_name: str) -> int:
        """How many of a class wait."""
        return self._lanes[class_name].count

    def push(self, request: OperationId, class_name: str, caller: str) -> None:
        """One more, at the end of its caller's."""
        lane = self._lanes[class_name]
        if not lane.count:
            lane.tag = self._read_tag(lane)
        requests = lane.callers.setdefault(caller, OrderedDict())
        requests[request] = None
        lane.resize(len(requests) - 1, len(requests))
        self._where[request] = lane, caller

    def find_next(self) -> OperationId:
        """Whoever is next."""
        lane = min((one for one in self._lanes.values() if one.count), key=_rank)
        return next(iter(next(iter(lane.callers.values()))))

    def pop(self) -> OperationId:
        """Take out whoever is next."""
        lane = min((one for one in self._lanes.values() if one.count), key=_rank)
        self._times[lane.traffic.priority] = lane.tag
        lane.tag += lane.stride
        caller, requests = lane.callers.popitem(last=False)
        request, _ = requests.popitem(last=False)
        if requests:
            lane.callers[caller] = requests  # behind the others
        lane.resize(len(requests) + 1, len(requests))
        del self._where[request]
        return request

    def remove(self, request: OperationId) -> None:
        """Take out one that waits, wherever it stands."""
        lane, caller = self._where.pop(request)
        requests = lane.callers[caller]
        del requests[request]
        if not requests:
            del lane.callers[caller]
        lane.resize(len(requests) + 1, len(requests))

    def find_excess(self, newcomer: OperationId) -> OperationId:
        """Who must go, if one must: the newest of whoever has most for its share.

        Between equals it is the newcomer's own: who waits already is not sent away for nothing.
        """
        own_lane, own_caller = self._where[newcomer]
        waiting = [one for one in self._lanes.values() if one.count]
        lowest = min(one.traffic.priority for one in waiting)
        lane = max(
            (one for one in waiting if one.traffic.priority == lowest),
            key=lambda one: (one.read_size(), one is own_lane, one.place),
        )
        if lane is own_lane and len(lane.callers[own_caller]) == max(lane.sizes):
            return next(reversed(lane.callers[own_caller]))
        return next(reversed(lane.callers[lane.find_fattest()]))

    def count_ahead(self, class_name: str, caller: str) -> int:
        """How many that wait would be served before one more of this class and caller."""
        own = self._lanes[class_name]
        ahead = _count_turns_ahead(own, caller)
        tag = self._read_tag(own) + ahead * own.stride
        for lane in self._lanes.values():
            if lane is own or lane.traffic.priority < own.traffic.priority:
                continue
            if lane.traffic.priority > own.traffic.priority:
                ahead += lane.count
                continue
            gap = tag - lane.tag + (1 if lane.place < own.place else 0)
            ahead += max(0, min(lane.count, -(-gap // lane.stride)))
        return ahead

    def list_in_order(self) -> list[OperationId]:
        """Everybody, as they would be served if nobody came."""
        rest = FairLine(self._classes)
        rest._times = dict(self._times)
        for name, lane in self._lanes.items():
            twin = rest._lanes[name]
            twin.tag, twin.count, twin.sizes = lane.tag, lane.count, Counter(lane.sizes)
            for caller, requests in lane.callers.items():
                twin.callers[caller] = OrderedDict(requests)
                rest._where |= dict.fromkeys(requests, (twin, caller))
        return [rest.pop() for _ in range(len(rest))]

    def _read_tag(self, lane: _Lane) -> int:
        return lane.tag if lane.count else max(lane.tag, self._times[lane.traffic.priority])


def _count_turns_ahead(lane: _Lane, caller: str) -> int:
    """How many of its class come before one more of this caller."""
    if caller not in lane.callers:
        return len(lane.callers)  # each of the others has had one turn
    turns = len(lane.callers[caller]) + 1
    ahead, reach = turns - 1, turns
    for other, requests in lane.callers.items():
        if other == caller:
            reach = turns - 1  # who comes behind it in a round has had one turn less
        else:
            ahead += min(len(requests), reach)
    return ahead


def _rank(lane: _Lane) -> tuple[int, int, int]:
    return -lane.traffic.priority, lane.tag, lane.place
