"""The runs of jobs that are on their way through Envoy: between the runner that sends each, and its exchange.

The request that comes in at the jobs listener names its run, and everything else about it is found here.
What names none is nobody's.
"""

import asyncio
from dataclasses import dataclass, field, replace

from envoy_ext.domain.ids import OperationId
from envoy_ext.ports import DeliverySink
from envoy_ext.services.deliveries import Delivery
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.opening import Opening, RunOf
from envoy_ext.services.queues import Queues


@dataclass(slots=True)
class SentRun:
    """One run that is sent, or about to be."""

    opening: Opening
    opened: bool = False
    """Its exchange has begun: what becomes of it is that one's to say."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """All is told of the exchange."""


class Runs:
    """Filled by the runner, asked by the delivery filter of the jobs listener; on one event loop."""

    def __init__(self, exchanges: Exchanges, fleet: Fleet, queues: Queues) -> None:
        self._exchanges = exchanges
        self._fleet = fleet
        self._queues = queues
        self._sent: dict[str, SentRun] = {}

    def expect(self, name: str, opening: Opening, job_id: OperationId, attempts_left: int) -> SentRun:
        """A run is about to be sent under this name, which no other request ever bore. It has its slot."""
        run = SentRun(opening)
        of = RunOf(job_id, attempts_left, on_over=run.over.set)
        run.opening = replace(opening, run=of)
        self._sent[name] = run
        return run

    def forget(self, name: str) -> None:
        """Nothing more is sent of it: what comes late under its name is nobody's."""
        self._sent.pop(name, None)

    def open(self, name: str, sink: DeliverySink) -> Delivery | None:
        """The request of a run has come in; None when it is none that is expected, or has come before."""
        run = self._sent.get(name)
        if run is None or run.opened:
            return None
        run.opened = True
        delivery = Delivery(sink, self._fleet.streams.note_bytes, self._queues)
        live = delivery.live = self._exchanges.add(run.opening, sink)
        live.open()
        return delivery
