"""What one run is: how large its engines are, how long its phases last, what is promised of it."""

from dataclasses import dataclass
from typing import Any

from envoy_ext.sim.options import SimOptions


@dataclass(frozen=True, slots=True)
class Shape:
    """Two equal replicas, and clients that together ask for 70 % of what both can do."""

    slots: int = 8
    """What one replica computes at once; the rest waits in its own queue."""
    tokens: int = 20
    prefill_s: float = 0.1
    token_s: float = 0.02
    token_s_a_neighbour: float = 0.005
    """A full engine of eight takes 55 ms for a token, an idle one 20."""
    deadline_s: float = 4.0
    """How long a client waits for one try; three times what a full engine takes for an answer."""
    max_wait_s: float = 2.0
    """How long those may wait here who do not say for how long they would."""
    load: float = 0.7
    """Of what both replicas can do."""
    measure_s: float = 15.0
    both_s: float = 15.0
    lost_s: float = 40.0
    back_s: float = 35.0
    retry_percent: int = 20
    retry_min: int = 3
    goodput: float = 0.9
    """What has to be left of the measured capacity while a replica is lost: a tenth is for replays, which
    are computed beside what the replica computes, and for the second in which the loss is noticed."""
    latency: float = 1.3
    """How much longer nine in ten answers may take at the replica that is left than before."""
    on_their_way: int = 1
    """Requests that have a slot of the replica that is lost, and no attempt there yet: they go to the other
    one, full or not. An attempt follows its slot within a few milliseconds."""
    refusal: float = 1.0
    """What the median refusal may cost its client in time, against the median answer."""
    recovered_s: float | None = 25.0
    """The look that finds it again, the line that has grown, and clients that come back as late as they were
    told to, at a load that leaves little room for them. None: that is not judged."""

    @property
    def budget(self) -> int:
        """How many replays may run at once, with all slots of both replicas taken."""
        share = self.retry_percent * 2 * self.slots
        return max(self.retry_min, -(-share // 100))

    def build_engine(self, name: str, event_log: str, host: str, port: int) -> SimOptions:
        """One replica."""
        return SimOptions(
            name=name,
            host=host,
            port=port,
            tokens=self.tokens,
            prefill_s=self.prefill_s,
            token_s=self.token_s,
            token_s_a_neighbour=self.token_s_a_neighbour,
            max_running=self.slots,
            event_log=event_log,
        )

    def build_admission(self) -> dict[str, Any]:
        """The gateway's sections that matter here; all else is default."""
        return {
            "retry_budget": {"percent": self.retry_percent, "min_concurrency": self.retry_min},
            "admission": {"max_wait": f"{self.max_wait_s:g}s", "classes": {"sdk": {"max_wait": "30s"}}},
        }


QUICK = Shape(
    tokens=12,
    prefill_s=0.05,
    deadline_s=1.8,
    max_wait_s=0.8,
    measure_s=2.5,
    both_s=1.5,
    lost_s=5.0,
    back_s=3.0,
    goodput=0.6,
    latency=2.0,
    on_their_way=4,
    refusal=2.0,
    recovered_s=None,
)
"""For a test on a machine with other work: it tells a collapse from none, and no ten per cent."""
