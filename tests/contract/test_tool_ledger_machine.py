"""A tool that may not act twice acts at most once for each call, whatever ends come late, twice or never.

Attempts of operations that are run again want calls in any order. A call that was let through has reached the
tool or has not, and every end that is told of it is true, or "unknown".
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
from hypothesis import event, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain.ids import AttemptId, OperationId, SeatId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.tool_calls import (
    CallAnswered,
    CallEnd,
    CallId,
    CallRefused,
    CallState,
    Claim,
    NewCall,
    ToolCall,
)
from envoy_ext.ports import Store
from tests.support.records import START, attempt_ended, attempt_started, begun, ended
from tests.support.redis_server import RedisServer
from tests.support.store_pairs import StorePairs

LEDGER = OperationId("op_1")
GATEWAYS = st.integers(0, 1)


@dataclass(frozen=True)
class Grant:
    """A call that was let through, and whether it reached the tool."""

    call: ToolCall
    sent: bool
    end: CallEnd
    """The one that will be told of it, if any is."""

    @property
    def result(self) -> KeptAnswer | None:
        body = f"{self.call.call_id} {self.end.grant}".encode()
        return KeptAnswer(200, (), body) if self.end.state is CallState.RECORDED else None


class ToolLedgerMachine(RuleBasedStateMachine):
    """Over memory alone; `AllStores` adds the others."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.memory = MemoryJournal(exclusive=False)
        self.operation, self.attempts = LEDGER, 0
        self.newest: AttemptId | None = None
        self.grants: list[Grant] = []
        self.had: Counter[tuple[str, AttemptId]] = Counter()
        """How many equal calls an attempt had answered, or let through to the tool."""
        self.results: dict[CallId, KeptAnswer] = {}

    def ask(self, gateway: int, ask: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        """The answer, which is that of every store."""
        answer = self.runner.run(ask(self.memory))
        for other in self.list_others(gateway):
            assert self.runner.run(ask(other)) == answer
        return answer

    def list_others(self, gateway: int) -> list[Store]:
        """The other stores, as a gateway has them open."""
        return []

    @initialize()
    def start(self) -> None:
        self.seat = SeatId(self.ask(0, lambda store: store.take_seat("gw")))
        self.ask(0, lambda store: store.begin(begun(LEDGER), self.seat))
        self.start_attempt(0, last_ended=False)

    def teardown(self) -> None:
        self.runner.close()

    # --- what happens -------------------------------------------------------------------------

    @rule(gateway=GATEWAYS, last_ended=st.booleans())
    def start_attempt(self, gateway: int, last_ended: bool) -> None:
        self.attempts += 1
        started = attempt_started(self.operation, f"att_{self.attempts}", self.attempts)
        before = [attempt_ended(self.operation, self.newest)] if last_ended and self.newest else []
        self.ask(gateway, lambda store: store.append([*before, started], FIRST_TOKEN))
        self.newest = started.attempt_id

    @rule(gateway=GATEWAYS)
    def run_the_operation_again(self, gateway: int) -> None:
        self.ask(gateway, lambda store: store.append([ended(self.operation)], FIRST_TOKEN))
        self.operation = OperationId(f"op_{int(self.operation[3:]) + 1}")
        self.newest = None
        again = begun(self.operation, ledger_id=LEDGER)
        self.ask(gateway, lambda store: store.begin(again, self.seat))
        self.start_attempt(gateway, last_ended=False)

    @rule(
        gateway=GATEWAYS,
        ago=st.sampled_from([0] * 9 + [1]),
        what=st.sampled_from(["mail"] * 6 + ["order", "search"]),
        key=st.sampled_from([None, None, None, "key"]),
        state=st.sampled_from(
            [
                CallState.RECORDED,
                CallState.RECORDED,
                CallState.NOT_SENT,
                CallState.NOT_KEPT,
                CallState.UNKNOWN,
            ]
        ),
        told_at_once=st.booleans(),
        lost=st.booleans(),
    )
    def want_a_call(
        self,
        gateway: int,
        ago: int,
        what: str,
        key: str | None,
        state: CallState,
        told_at_once: bool,
        lost: bool,
    ) -> None:
        call = NewCall(
            operation_id=self.operation,
            attempt_id=AttemptId(f"att_{self.attempts - ago}"),
            at=START + self.attempts,
            tool=what,
            fingerprint=f"{what}({key})",
            arguments_sha256=what,
            keyed=key is not None,
            idempotent=what == "search",
        )
        claim: Claim = self.ask(gateway, lambda store: store.begin_call(call))
        event(f"{type(claim).__name__} {getattr(claim, 'why', '')}")
        if isinstance(claim, CallRefused):
            return
        assert call.attempt_id == self.newest
        if isinstance(claim, CallAnswered):
            self.had[call.fingerprint, call.attempt_id] += 1
            call_id = claim.call.call_id
            kept = self.ask(gateway, lambda store: store.read_result(LEDGER, call_id))
            assert kept == self.results[call_id]
            return
        # Whoever is not told may be told "unknown" of what was not sent, too.
        sent = state is not CallState.NOT_SENT and not (state is CallState.UNKNOWN and lost)
        self.had[call.fingerprint, call.attempt_id] += sent
        end = CallEnd(claim.call.call_id, claim.call.grants, START + 9, state)
        self.grants.append(Grant(claim.call, sent, end))
        if told_at_once:
            self.tell(gateway, self.grants[-1])

    @rule(gateway=GATEWAYS, back=st.integers(1, 4))
    def tell_an_end(self, gateway: int, back: int) -> None:
        for grant in self.grants[-back:][:1]:
            self.tell(gateway, grant)

    def tell(self, gateway: int, grant: Grant) -> None:
        counted = self.ask(gateway, lambda store: store.end_call(LEDGER, grant.end, grant.result))
        if counted and grant.result is not None:
            assert self.results.setdefault(grant.end.call_id, grant.result) == grant.result

    # --- what is true -------------------------------------------------------------------------

    def list_acted(self) -> list[ToolCall]:
        return [grant.call for grant in self.grants if grant.sent and not grant.call.idempotent]

    @invariant()
    def a_call_acts_once(self) -> None:
        acted = Counter(call.call_id for call in self.list_acted())
        assert acted == Counter(set(acted))

    @invariant()
    def equal_calls_act_no_oftener_than_one_attempt_wanted_them(self) -> None:
        for fingerprint, times in Counter(call.fingerprint for call in self.list_acted()).items():
            assert times <= max(n for (equal, _), n in self.had.items() if equal == fingerprint)


class AllStores(ToolLedgerMachine):
    """The file, and the journal at Redis, are open at two gateways.

    Now and then the machine of the file stops, and another goes on with its disk.
    """

    def __init__(self, redis: RedisServer) -> None:
        super().__init__()
        self.pairs = StorePairs(redis, 2, self.runner.run)

    def list_others(self, gateway: int) -> list[Store]:
        return self.pairs.opened[gateway]

    def teardown(self) -> None:
        self.pairs.end()
        super().teardown()

    @rule()
    def stop_and_go_on_with_the_disk(self) -> None:
        self.pairs.go_on_with_the_disk()

    @invariant()
    def the_ledgers_are_alike(self) -> None:
        for gateway in range(2):
            self.ask(gateway, lambda store: store.read_calls(LEDGER))


ToolLedgerMachine.TestCase.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
TestToolLedger = ToolLedgerMachine.TestCase


def test_a_tool_acts_once_in_every_store(redis: RedisServer) -> None:
    bounds = settings(max_examples=15, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(lambda: AllStores(redis), settings=bounds)
