"""Which requests are served while nothing can be recorded: the operator's choice, by traffic class."""

from collections.abc import Callable
from dataclasses import dataclass, field

from envoy_ext.domain.traffic_class import TrafficClasses
from envoy_ext.services.admission import Arrival


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """By default none is, and the store is never down."""

    classes: TrafficClasses = field(default_factory=lambda: TrafficClasses(()))
    is_down: Callable[[], bool] = _never
    """Whether the store takes nothing at this moment."""

    def allows(self, arrival: Arrival) -> bool:
        """Whether a request may go on unrecorded. A key is a promise that only the store can keep."""
        return arrival.idempotency_key is None and self.classes.find(arrival.request_class).unrecorded

    def takes_now(self, arrival: Arrival) -> bool:
        """Whether a request is taken although this gateway has no seat."""
        return self.allows(arrival) and self.is_down()
