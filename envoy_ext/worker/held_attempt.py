"""One attempt inside a worker: keeps its lease, and says when its answer may go on and when it must stop."""

import asyncio
import time
from collections.abc import Callable

from envoy_ext.domain.worker_lease import WorkerLease, WorkerLeaseState
from envoy_ext.worker.channel import Answer, LeaseChannel

_LIVE = (WorkerLeaseState.ASKED, WorkerLeaseState.HELD)


class HeldAttempt:
    """Renews one lease until it is lost or the attempt is over. Belongs to one event loop."""

    def __init__(
        self, lease: WorkerLease, channel: LeaseChannel, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.lease = lease
        self.lost = asyncio.Event()
        """Set once nothing may be sent any more."""
        self._channel = channel
        self._now = now
        self._settled = asyncio.Event()
        """Set once the first renewal was granted, or the lease was lost."""
        self._asking: set[asyncio.Task[None]] = set()

    async def keep(self) -> None:
        """Renew in time, until the lease is lost or this is cancelled."""
        try:
            while (due := self.lease.next_deadline()) is not None:
                await asyncio.sleep(max(0.0, due - self._now()))
                self._renew()
                self._look()
        finally:
            for task in self._asking:
                task.cancel()

    async def wait_may_publish(self) -> bool:
        """Whether the next chunk may be sent; waits while no renewal has been granted yet."""
        await self._settled.wait()
        allowed = self.lease.may_publish(self._now())
        self._look()
        return allowed

    def revoke(self, because: str) -> None:
        """End the lease from this side."""
        self.lease.revoke(because)
        self._look()

    def note_stopped(self) -> None:
        """The answer has ended: nothing of it is computed any more."""
        self.lease.note_stopped()
        self._look()

    def _renew(self) -> None:
        renewal = self.lease.build_renewal(self._now())
        if renewal is None:
            return

        async def ask() -> None:
            answer = await self._channel.renew(renewal)
            if answer is Answer.GRANTED:
                self.lease.receive_grant(renewal.number, self._now())
            elif answer is Answer.REFUSED:
                self.lease.receive_refusal()
            self._look()

        # Not waited for: an answer that is late must not delay the next question.
        task = asyncio.get_running_loop().create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _look(self) -> None:
        if self.lease.state is not WorkerLeaseState.ASKED:
            self._settled.set()
        if self.lease.state not in _LIVE:
            self.lost.set()
