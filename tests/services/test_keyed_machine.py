"""One key, two gateways, every order of arrivals, ends and crashes: what runs never overlaps, and a kept
answer is only ever given for a completed operation of the same caller, path and body, as its client had it.
"""

import asyncio
import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.answer_keeping import AnswersKept, KeepingPolicy
from envoy_ext.domain.events import ResponseBody
from envoy_ext.domain.exchange_shared import ExchangePolicy
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import OperationState
from envoy_ext.services.joiners import JoinPolicy
from envoy_ext.services.recovery import Recovery
from tests.support.clock import ManualClock
from tests.support.keyed import SSE, WHOLE, Client, let_tasks_run
from tests.support.sidecar import BODY, DELTA, REST, Sidecar

POLICY = LeasePolicy()
CALLERS = ("", "other")
PATHS = ("/v1/chat/completions", "/v1/completions")
HOW = ("json", "sse", "cut", "refused", "left", "early", "done")
BODIES = (BODY, BODY + b" ")


class Gateway:
    """One sidecar's life, and the clients that are with it."""

    def __init__(self, journal: MemoryJournal, clock: ManualClock, name: str, waits: bool) -> None:
        self.sidecar = Sidecar(
            journal=journal,
            clock=clock,
            name=name,
            policy=ExchangePolicy(settle_s=0.0, lease=POLICY),
            keeping=KeepingPolicy(AnswersKept.ALL),
            joining=JoinPolicy(waits=waits, max_wait_s=600.0, max_waiting=3),
        )
        self.clients: list[Client] = []
        self.recovery = Recovery(journal, clock, POLICY, self.sidecar.keeper, lambda _ended: None)


class OneKey(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.journal = MemoryJournal(exclusive=False)
        self.lives = 0
        self.gateways = [self.start(waits) for waits in (False, True)]
        self.asked: dict[int, tuple[str, str, bytes]] = {}
        """What each client asked with: caller, path, body."""
        self.had: dict[OperationId, bytes] = {}
        """The whole answer that the client of a completed operation was sent."""

    def start(self, waits: bool) -> Gateway:
        async def build() -> Gateway:
            self.lives += 1
            return Gateway(self.journal, self.clock, f"g{self.lives}-", waits)

        return self.play(build())

    def play(self, work: Any) -> Any:
        async def all_of_it() -> Any:
            done = await work
            await let_tasks_run()
            return done

        return self.loop.run_until_complete(all_of_it())

    def teardown(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    # --- what happens -------------------------------------------------------------------------

    @rule(
        at=st.sampled_from([0, 1]),
        caller=st.sampled_from(CALLERS),
        path=st.sampled_from(PATHS),
        body=st.sampled_from(BODIES),
        same=st.booleans(),
    )
    def a_request_arrives(self, at: int, caller: str, path: str, body: bytes, same: bool) -> None:
        if same:
            caller, path, body = CALLERS[0], PATHS[0], BODIES[0]

        async def arrive() -> None:
            client = Client(self.gateways[at].sidecar, caller=caller, path=path, body=body)
            self.gateways[at].clients.append(client)
            self.asked[id(client)] = (caller, path, body)

        self.play(arrive())

    def find_running(self) -> list[Client]:
        """The clients whose request was sent on and has not ended."""
        clients = [client for gateway in self.gateways for client in gateway.clients]
        return [one for one in clients if one.runs and not one.delivery.left]

    @precondition(lambda self: self.find_running())
    @rule(which=st.integers(0, 9), how=st.sampled_from(HOW))
    def one_ends(self, which: int, how: str) -> None:
        running = self.find_running()
        client = running[which % len(running)]
        self.play(self.end(client, how))
        self.clock.advance(0.01)

    async def end(self, client: Client, how: str) -> None:
        await client.start()
        assert client.live is not None
        operation_id = client.live.exchange.identity.operation_id
        mark = operation_id.encode()
        if how == "json":
            await client.begin_answer(WHOLE.replace(b"Hello", mark)[:30])
            await client.end_answer(WHOLE.replace(b"Hello", mark)[30:])
            self.had[operation_id] = WHOLE.replace(b"Hello", mark)
        elif how in ("sse", "cut", "left", "done"):
            first = DELTA.replace(b"Hel", mark)
            await client.begin_answer(first, SSE)
            if how == "sse":
                await client.end_answer(REST)
            elif how == "cut":
                await client.end_answer()
            elif how == "done":
                client.delivery.receive(ResponseBody(REST, end=False))
                await client.leave()
            else:
                await client.leave()
            if how in ("sse", "done"):
                self.had[operation_id] = first + REST
        elif how == "refused":
            await client.begin_answer(b'{"error": {"message": "no"}}', status=400)
            await client.end_answer()
        else:
            await client.leave()

    @precondition(lambda self: any(gateway.clients for gateway in self.gateways))
    @rule(at=st.sampled_from([0, 1]), which=st.integers(0, 9))
    def one_that_waits_leaves(self, at: int, which: int) -> None:
        waiting = [one for one in self.gateways[at].clients if one.told == ["HoldRequest"]]
        if waiting:
            self.play(waiting[which % len(waiting)].leave())

    @rule(at=st.sampled_from([0, 1]))
    def a_gateway_is_killed_and_another_starts(self, at: int) -> None:
        killed = self.gateways[at]
        for task in asyncio.all_tasks(self.loop):
            # Only this one's: a task of the other gateway holds another delivery.
            frame = getattr(task.get_coro(), "cr_frame", None)
            one = None if frame is None else frame.f_locals.get("one")
            if one is not None and any(one.delivery is client.delivery for client in killed.clients):
                task.cancel()
        for client in killed.clients:
            client.delivery.left = True
        self.gateways[at] = self.start(waits=bool(at))

    @rule()
    def time_passes_and_the_gone_are_found(self) -> None:
        async def look() -> None:
            for _ in range(8):
                self.clock.advance(POLICY.renew_s)
                for gateway in self.gateways:
                    await gateway.sidecar.keeper.beat()
                for gateway in self.gateways:
                    await gateway.recovery.look()
                await asyncio.sleep(0)

        self.play(look())

    # --- what always holds --------------------------------------------------------------------

    def read_operations(self) -> list[Operation]:
        found: list[Operation] = self.play(self.journal.list_recent(1000))
        return list(reversed(found))

    @invariant()
    def no_two_of_one_key_run_at_once(self) -> None:
        by_key: dict[tuple[str, str], list[Operation]] = {}
        for operation in self.read_operations():
            by_key.setdefault((operation.caller, operation.path), []).append(operation)
        for chain in by_key.values():
            for before, after in itertools.pairwise(chain):
                assert before.ended_at is not None
                assert before.ended_at <= after.created_at
                assert before.state is not OperationState.COMPLETED
                assert not before.partly_delivered

    @invariant()
    def an_answer_is_that_of_the_same_request(self) -> None:
        operations = {one.operation_id: one for one in self.read_operations()}
        for gateway in self.gateways:
            for client in gateway.clients:
                for given in client.sent.replies:
                    if not isinstance(given, step.GiveAnswer):
                        continue
                    operation = operations[given.operation_id]
                    assert operation.state is OperationState.COMPLETED
                    assert given.answer.body == self.had[given.operation_id]
                    asked = self.asked[id(client)]
                    assert (operation.caller, operation.path) == asked[:2]
                    assert operation.body_bytes == len(asked[2])

    @invariant()
    def nothing_broke(self) -> None:
        for gateway in self.gateways:
            assert gateway.sidecar.watcher.bugs == []
            waiting = [
                one for one in gateway.clients if one.told == ["HoldRequest"] and not one.delivery.left
            ]
            assert len(gateway.sidecar.arrivals.joiners) == len(waiting)


TestOneKey = OneKey.TestCase
TestOneKey.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
