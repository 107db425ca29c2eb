"""What workers tell the gateway of their attempts' ends."""

import asyncio
import time

import pytest

from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId
from envoy_ext.services.leases import Leases


class Heard:
    """The stops that workers told a gateway in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: dict[str, float] = {}
        """When it came, in monotonic seconds, by attempt."""
        note = Leases.note_stopped

        def note_stopped(
            leases: Leases, operation_id: OperationId, attempt_id: AttemptId, token: FencingToken
        ) -> bool:
            self.at[attempt_id] = time.monotonic()
            return note(leases, operation_id, attempt_id, token)

        monkeypatch.setattr(Leases, "note_stopped", note_stopped)

    async def wait(self, attempt_id: str) -> float:
        async with asyncio.timeout(20):
            while attempt_id not in self.at:
                await asyncio.sleep(0.01)
        return self.at[attempt_id]
