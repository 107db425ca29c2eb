"""Ownership's part of the composition: the seat that this gateway keeps, and what those leave who are gone.

Belongs to the composition layer, beside `app`.
"""

import logging
import os
import socket
from collections.abc import Coroutine
from typing import Any

from envoy_ext.domain.ids import SeatId
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.operation import Operation
from envoy_ext.ports import Clock, Journal
from envoy_ext.services.recovery import Recovery
from envoy_ext.services.seats import SeatKeeper

log = logging.getLogger("envoy_ext")


class Ownership:
    """`start` before the first exchange opens, `stop` when the last has ended."""

    def __init__(self, journal: Journal, clock: Clock, policy: LeasePolicy) -> None:
        # The name is for people who look who owned an operation.
        self.keeper = SeatKeeper(journal, clock, policy, f"{socket.gethostname()}:{os.getpid()}")
        self.keeper.on_lost(log_lost_seat)
        self._recovery = Recovery(journal, clock, policy, self.keeper, log_ended)

    async def start(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Take a seat, and end what an earlier life left open; the work that goes on from here."""
        await self.keeper.take()
        await self._recovery.look()
        return self.keeper.run(), self._recovery.run()

    async def stop(self) -> None:
        """Leave the seat."""
        await self.keeper.resign()


def log_lost_seat(seat: SeatId) -> None:
    """Other gateways have found this one gone."""
    log.warning("seat_lost", extra={"seat": seat})


def log_ended(operation: Operation) -> None:
    """One line for each operation whose gateway is gone."""
    log.warning(
        "operation_ended_by_recovery",
        extra={
            "operation_id": operation.operation_id,
            "first_delta_sent": operation.first_delta_sent,
            "token": operation.token,
        },
    )
