"""A call is looked up before it leaves, and recorded before its answer is given away."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.notes import ToolCallDecided, ToolCallEnded
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import Record
from envoy_ext.domain.tool_calls import CallEnd, CallState, Claim, NewCall, ToolCall
from envoy_ext.domain.tool_errors import CallOutcome
from envoy_ext.domain.tool_request import HttpRequest, ToolPolicy
from envoy_ext.services.background import Background
from envoy_ext.services.tools import LiveCall, ToolRequest, Tools
from tests.support.journals import keep
from tests.support.records import attempt_ended, attempt_started, begun
from tests.support.sidecar import Watcher

OPERATION = OperationId("op_1")
RESULT = KeptAnswer(200, (("content-type", "application/json"),), b'{"sent":true}')
POST = HttpRequest("POST", "/mail/send", b'{"to":"a"}', "application/json")


class Ledger(MemoryJournal):
    """A store that can fail, or keep a write of an end waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def begin_call(self, wanted: NewCall) -> Claim:
        if self.down:
            raise JournalUnavailable("the disk is full")
        return await super().begin_call(wanted)

    async def end_call(self, ledger_id: OperationId, end: CallEnd, result: KeptAnswer | None = None) -> bool:
        await self.go_on.wait()
        if self.down:
            raise JournalUnavailable("the disk is full")
        return await super().end_call(ledger_id, end, result)


@dataclass
class Engine:
    """The engine's side: what it was told, in order."""

    told: list[object] = field(default_factory=list)

    def pass_on(self) -> None:
        self.told.append("passed")

    def let_out(self, key: str) -> None:
        self.told.append(("out", key))

    def answer(self, result: KeptAnswer) -> None:
        self.told.append(result)

    def refuse(self, error: ClientError) -> None:
        self.told.append((error.http_status, error.code))

    def release(self) -> None:
        self.told.append("released")


@dataclass
class Desk:
    """The service on a memory store, in which the first attempt of an operation runs."""

    ledger: Ledger = field(default_factory=Ledger)
    watcher: Watcher = field(default_factory=Watcher)
    require_operation: bool = False

    def __post_init__(self) -> None:
        self.background = Background(self.watcher)
        self.tools = Tools(
            self.ledger,
            {"mail": ToolPolicy("mail"), "search": ToolPolicy("search", idempotent=True)},
            require_operation=self.require_operation,
            clock=SystemClock(),
            observer=self.watcher,
            background=self.background,
        )

    async def ask(
        self, attempt: str | None = "att_1", http: HttpRequest = POST, **changes: object
    ) -> tuple[LiveCall | None, Engine]:
        """One request, as far as it comes by itself."""
        live, engine = self.ask_nowait(attempt, http, **changes)
        await self.background.wait()
        return live, engine

    def ask_nowait(
        self, attempt: str | None = "att_1", http: HttpRequest = POST, **changes: object
    ) -> tuple[LiveCall | None, Engine]:
        request = ToolRequest(
            "mail", http, "req-1", OPERATION, None if attempt is None else AttemptId(attempt)
        )
        engine = Engine()
        return self.tools.arrive(replace(request, **changes), engine), engine  # type: ignore[arg-type]

    async def make(self, attempt: str = "att_1", http: HttpRequest = POST) -> tuple[LiveCall, Engine]:
        """A call that is let out."""
        live, engine = await self.ask(attempt, http)
        assert live is not None
        assert isinstance(engine.told[-1], tuple), engine.told
        assert engine.told[-1][0] == "out", engine.told
        return live, engine

    async def append(self, *records: Record) -> None:
        await self.ledger.append(records, FIRST_TOKEN)

    async def second_attempt(self) -> None:
        await self.append(attempt_ended(), attempt_started("op_1", "att_2", 2))

    async def calls(self) -> Sequence[ToolCall]:
        return await self.ledger.read_calls(OPERATION)

    @property
    def outcomes(self) -> list[CallOutcome]:
        return [note.outcome for note in self.watcher.notes if isinstance(note, ToolCallDecided)]

    @property
    def ends(self) -> list[tuple[CallState, bool]]:
        notes = self.watcher.notes
        return [(note.state, note.recorded) for note in notes if isinstance(note, ToolCallEnded)]


@pytest.fixture
async def desk() -> Desk:
    desk = Desk()
    await keep(desk.ledger, [begun("op_1"), attempt_started()])
    return desk


async def test_a_call_goes_out_under_a_key_of_its_own_and_is_released_once_it_is_recorded(desk: Desk) -> None:
    live, engine = await desk.make()
    (call,) = await desk.calls()
    assert engine.told == [("out", call.call_id)]
    assert call.state is CallState.BEGUN

    desk.ledger.go_on.clear()
    live.note_answered(RESULT)
    await asyncio.sleep(0)
    assert engine.told == [("out", call.call_id)], "it is not recorded yet"
    desk.ledger.go_on.set()
    await desk.background.wait()
    assert engine.told == [("out", call.call_id), "released"]
    (call,) = await desk.calls()
    assert (call.state, call.status) == (CallState.RECORDED, 200)
    assert (desk.outcomes, desk.ends) == ([CallOutcome.GRANTED], [(CallState.RECORDED, True)])


async def test_a_later_attempt_is_answered_from_the_ledger(desk: Desk) -> None:
    live, _ = await desk.make()
    live.note_answered(RESULT)
    await desk.background.wait()
    await desk.second_attempt()
    _, engine = await desk.ask("att_2")
    assert engine.told == [RESULT]
    assert desk.outcomes[-1] is CallOutcome.ANSWERED


async def test_a_callers_own_key_goes_to_the_tool(desk: Desk) -> None:
    live, engine = await desk.make(http=replace(POST, key="k1"))
    assert engine.told == [("out", "k1")]
    _, again = await desk.ask(http=replace(POST, key="k1"))
    assert again.told == [(409, "operation_in_progress")]
    live.note_answered(RESULT)
    await desk.background.wait()
    _, again = await desk.ask(http=replace(POST, key="k1"))
    assert again.told == [RESULT], "also to the same attempt"
    _, other = await desk.ask(http=replace(POST, key="k1", body=b'{"to":"b"}'))
    assert other.told == [(422, "idempotency_key_reused")]


async def test_an_answer_that_is_too_large_is_released_and_forbids_its_repetition(desk: Desk) -> None:
    live, engine = await desk.make()
    live.note_large_answer(200)
    await desk.background.wait()
    assert engine.told[-1] == "released"
    await desk.second_attempt()
    _, engine = await desk.ask("att_2")
    assert engine.told == [(409, "replay_not_allowed")]
    assert desk.outcomes[-1] is CallOutcome.RESULT_NOT_KEPT


@pytest.mark.parametrize(
    ("sent", "state", "told", "again"),
    [
        (False, CallState.NOT_SENT, (503, "upstream_unavailable"), "out"),
        (True, CallState.UNKNOWN, (409, "tool_outcome_unknown"), 409),
    ],
)
async def test_a_call_without_an_answer_may_be_made_again_only_if_it_never_left(
    desk: Desk, sent: bool, state: CallState, told: tuple[int, str], again: object
) -> None:
    live, engine = await desk.make()
    live.note_unanswered(sent=sent)
    await desk.background.wait()
    assert engine.told[-1] == told
    assert [call.state for call in await desk.calls()] == [state]
    _, engine = await desk.ask()
    assert isinstance(engine.told[0], tuple)
    assert engine.told[0][0] == again


async def test_an_engine_that_leaves_leaves_a_call_of_unknown_outcome(desk: Desk) -> None:
    live, engine = await desk.make()
    live.note_closed()
    live.note_answered(RESULT)  # whatever came after it
    await desk.background.wait()
    assert len(engine.told) == 1
    assert [call.state for call in await desk.calls()] == [CallState.UNKNOWN]
    await desk.second_attempt()
    _, engine = await desk.ask("att_2")
    assert engine.told == [(409, "tool_outcome_unknown")]


async def test_an_engine_that_leaves_before_its_call_did_has_called_nothing(desk: Desk) -> None:
    live, engine = desk.ask_nowait()
    assert live is not None
    live.note_closed()
    await desk.background.wait()
    assert engine.told == []
    assert [call.state for call in await desk.calls()] == [CallState.NOT_SENT]


async def test_a_repetition_waits_until_it_is_written_that_the_first_call_was_lost(desk: Desk) -> None:
    """An engine's own HTTP client gives up and calls again at once."""
    live, _ = await desk.make()
    desk.ledger.go_on.clear()
    live.note_closed()
    _, engine = desk.ask_nowait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert engine.told == []
    desk.ledger.go_on.set()
    await desk.background.wait()
    assert engine.told == [(409, "tool_outcome_unknown")]


async def test_nothing_is_let_out_that_cannot_be_recorded(desk: Desk) -> None:
    desk.ledger.down = True
    _, engine = await desk.ask()
    assert engine.told == [(503, "upstream_unavailable")]
    assert desk.outcomes == [CallOutcome.UNAVAILABLE]


async def test_an_end_that_cannot_be_recorded_gives_the_answer_and_counts_as_unknown(desk: Desk) -> None:
    live, engine = await desk.make()
    desk.ledger.down = True
    live.note_answered(RESULT)
    await desk.background.wait()
    assert engine.told[-1] == "released"
    assert desk.ends == [(CallState.RECORDED, False)]
    desk.ledger.down = False
    await desk.second_attempt()
    _, engine = await desk.ask("att_2")
    assert engine.told == [(409, "tool_outcome_unknown")]


async def test_an_attempt_that_is_over_or_unknown_calls_nothing(desk: Desk) -> None:
    await desk.second_attempt()
    for changes in ({"attempt": "att_1"}, {"attempt": "att_9"}):
        _, engine = await desk.ask(**changes)  # type: ignore[arg-type]
        assert engine.told == [(409, "attempt_superseded")]
    _, engine = await desk.ask("att_2", operation_id=OperationId("op_9"))
    assert engine.told == [(409, "attempt_superseded")]
    assert await desk.calls() == ()


async def test_a_call_that_names_nobody_passes_or_must_not(desk: Desk) -> None:
    _, engine = await desk.ask(None, operation_id=None)
    assert engine.told == ["passed"]
    strict = Desk(desk.ledger, require_operation=True)
    _, engine = await strict.ask(None, operation_id=None)
    assert engine.told == [(400, "invalid_request")]
    assert (desk.outcomes, strict.outcomes) == ([CallOutcome.UNWATCHED], [CallOutcome.INVALID])


async def test_an_operation_without_an_attempt_and_the_other_way_round_are_refused(desk: Desk) -> None:
    _, engine = await desk.ask(None)
    assert engine.told == [(400, "invalid_request")]
    _, engine = await desk.ask("att_1", operation_id=None)
    assert engine.told == [(400, "invalid_request")]


async def test_a_path_of_no_tool_is_not_found(desk: Desk) -> None:
    _, engine = await desk.ask(tool="")
    assert engine.told == [(404, "invalid_request")]
    (note,) = desk.watcher.notes
    assert isinstance(note, ToolCallDecided)
    assert note.tool is None


async def test_an_idempotent_tool_is_called_again(desk: Desk) -> None:
    live, _ = await desk.ask(tool="search")
    assert live is not None
    live.note_closed()
    await desk.background.wait()
    await desk.second_attempt()
    _, engine = await desk.ask("att_2", tool="search")
    (call,) = await desk.calls()
    assert engine.told == [("out", call.call_id)]


async def test_an_mcp_answer_is_given_again_under_the_new_id(desk: Desk) -> None:
    def build(number: int) -> HttpRequest:
        body = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"send"}}' % number
        return replace(POST, body=body)

    live, _ = await desk.make(http=build(1))
    live.note_answered(replace(RESULT, body=b'{"jsonrpc":"2.0","id":1,"result":{}}'))
    await desk.background.wait()
    await desk.second_attempt()
    _, engine = await desk.ask("att_2", build(7))
    assert engine.told == [replace(RESULT, body=b'{"jsonrpc":"2.0","id":7,"result":{}}')]
    _, engine = await desk.ask("att_2", replace(POST, body=b'{"jsonrpc":"2.0","id":1,"method":"ping"}'))
    assert engine.told == ["passed"]
    _, engine = await desk.ask("att_2", replace(POST, body=b"[" + build(1).body + b"]"))
    assert engine.told == [(400, "invalid_request")]
