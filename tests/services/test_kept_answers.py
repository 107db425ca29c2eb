"""Which answers are kept for a repeat, and what a repeat is given of them."""

import asyncio
import json
from pathlib import Path

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.answer_keeping import AnswerKeeping, AnswersKept, KeepingPolicy
from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.events import (
    AttemptAnswered,
    AttemptBody,
    DeliveryClosed,
    ResponseBody,
    ResponseStarted,
)
from envoy_ext.domain.ids import OperationId, ReplicaId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.notes import AnswerReplayed
from envoy_ext.domain.outcomes import OperationState
from envoy_ext.domain.records import OperationEnded
from tests.support.journals import leave
from tests.support.keyed import JSON, KEPT_HEADERS, SSE, WHOLE, Client, ask, let_tasks_run, read_kept
from tests.support.outages import FailingJournal
from tests.support.recovering import recover
from tests.support.sidecar import BODY, DELTA, REST, Sidecar

RECORDED = Path(__file__).parents[1] / "data" / "sse"
ALL = KeepingPolicy(AnswersKept.ALL)
UNREAD = b" " * (16 << 10)
"""More than is read of an answer with vectors."""


async def test_a_repeat_is_given_the_same_bytes_and_costs_nothing() -> None:
    sidecar = Sidecar()
    first = await ask(sidecar)
    await first.be_answered()
    again = await ask(sidecar, request_id="req-2")

    (operation,) = await sidecar.journal.list_recent(10)
    expected = KeptAnswer(200, KEPT_HEADERS, WHOLE)
    assert again.sent.replies == [step.GiveAnswer(expected, "req-2", operation.operation_id, 1)]
    assert sidecar.watcher.notes[-1] == AnswerReplayed(operation.pool, operation.operation_id, "req-2")
    assert sidecar.exchanges.inflight == 0
    assert sidecar.queues.idle


async def test_a_repeat_is_given_its_answer_where_no_replica_is_left() -> None:
    sidecar = Sidecar()
    await (await ask(sidecar)).be_answered()
    for replica in sidecar.replicas:
        sidecar.fleet.drain(ReplicaId(replica), 0.0)
    assert (await ask(sidecar)).given.answer.body == WHOLE
    assert (await ask(sidecar, key="another")).told == ["no_ready_replica"]


@pytest.mark.parametrize("changed", ["caller", "path", "key"])
async def test_no_answer_is_given_to_another_caller_path_or_key(changed: str) -> None:
    sidecar = Sidecar()
    await (await ask(sidecar)).be_answered()
    other = await ask(sidecar, **{changed: "/v1/completions" if changed == "path" else "other"})
    assert other.told == ["ForwardRequest"]


async def test_no_answer_is_given_for_another_body() -> None:
    sidecar = Sidecar()
    await (await ask(sidecar)).be_answered()
    assert (await ask(sidecar, body=BODY.replace(b"[]", b"[1]"))).told == ["idempotency_key_reused"]


async def test_what_is_kept_of_streams_is_the_policys_choice() -> None:
    for answers, kept in (
        (AnswersKept.NON_STREAMING, False),
        (AnswersKept.NONE, False),
        (AnswersKept.ALL, True),
    ):
        sidecar = Sidecar(keeping=KeepingPolicy(answers))
        await (await ask(sidecar)).be_answered(DELTA + REST, SSE)
        again = await ask(sidecar)
        assert again.told == (["GiveAnswer"] if kept else ["operation_complete"])
        if kept:
            assert again.given.answer.body == DELTA + REST
            assert dict(again.given.answer.headers)["content-type"] == SSE


async def test_nothing_is_kept_where_the_policy_says_none() -> None:
    sidecar = Sidecar(keeping=KeepingPolicy(AnswersKept.NONE))
    first = await ask(sidecar)
    await first.start()
    (start,) = [one for one in first.hop.replies if isinstance(one, step.StartAttempt)]
    assert not first.delivery.keeps_answer
    await first.begin_answer(WHOLE)
    await first.end_answer()
    assert (await ask(sidecar)).told == ["operation_complete"]
    assert start.keep_encoding is False  # BODY asks for a stream


async def test_an_answer_without_a_key_is_not_kept() -> None:
    sidecar = Sidecar(keeping=ALL)
    client = await ask(sidecar, key=None)
    assert not client.delivery.keeps_answer
    await client.be_answered()
    assert await read_kept(sidecar) == [None]


async def test_an_answer_longer_than_the_limit_is_not_kept_and_holds_no_memory() -> None:
    size = sum(len(name) + len(value) for name, value in KEPT_HEADERS) + len(WHOLE)
    for limit, told in ((size, "GiveAnswer"), (size - 1, "operation_complete")):
        sidecar = Sidecar(keeping=KeepingPolicy(max_bytes=limit))
        await (await ask(sidecar)).be_answered()
        assert (await ask(sidecar)).told == [told]


def test_the_bytes_of_an_answer_that_grows_too_long_are_let_go_at_once() -> None:
    keeping = AnswerKeeping(KeepingPolicy(max_bytes=1024))
    keeping.note(step.ForwardResponse("req-1", OperationId("op_1"), 1, may_append=False, status=200))
    keeping.note(step.ForwardBody(b"x" * 1024, end=False))
    assert keeping.held_bytes == 1024
    for end in (False, True):
        keeping.note(step.ForwardBody(b"x", end))
        assert keeping.held_bytes == 0
    assert keeping.build(last_word_said=True) is None


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_replicas_refusal_of_the_request_is_not_kept_and_runs_again(status: int) -> None:
    sidecar = Sidecar(keeping=ALL)
    first = await ask(sidecar)
    await first.be_answered(b'{"error": {"message": "no"}}', status=status)
    assert await read_kept(sidecar) == [None]
    assert (await ask(sidecar)).told == ["ForwardRequest"]


async def test_a_client_that_leaves_at_the_streams_own_end_has_had_a_whole_answer() -> None:
    """SDKs close at `[DONE]` and do not wait for the end of the body."""
    sidecar = Sidecar(keeping=ALL)
    first = await ask(sidecar)
    await first.start()
    await first.begin_answer(DELTA, SSE)
    first.delivery.receive(ResponseBody(REST, end=False))
    await first.leave()
    assert (await ask(sidecar)).given.answer.body == DELTA + REST


async def test_a_client_that_leaves_behind_the_last_delta_leaves_no_answer_to_give() -> None:
    """Its choice had finished, so it counts as answered; but what was to follow nobody has seen."""
    sidecar = Sidecar(keeping=ALL)
    first = await ask(sidecar)
    await first.start()
    await first.begin_answer(DELTA, SSE)
    first.delivery.receive(ResponseBody(REST.partition(b"data: [DONE]")[0], end=False))
    await first.leave()
    (operation,) = await sidecar.journal.list_recent(10)
    assert operation.state is OperationState.COMPLETED
    assert (await ask(sidecar)).told == ["operation_complete"]


async def test_while_the_journal_takes_no_ends_no_answers_pile_up() -> None:
    sidecar = Sidecar(journal=FailingJournal(OperationEnded))
    await (await ask(sidecar)).be_answered()
    sidecar.journal.mend()  # type: ignore[attr-defined]
    assert (await ask(sidecar)).told == ["operation_complete"]


async def test_a_keyed_request_is_asked_for_in_a_form_that_can_be_judged() -> None:
    """A compressed answer is not known to be whole, so it could never be kept."""
    body = BODY.replace(b"true", b"false")
    for key, keeps in ((None, True), ("k", False)):
        sidecar = Sidecar()
        client = await ask(sidecar, key=key, body=body)
        await client.start()
        (start,) = [one for one in client.hop.replies if isinstance(one, step.StartAttempt)]
        assert start.keep_encoding is keeps


async def test_an_answer_that_came_compressed_all_the_same_is_not_kept() -> None:
    sidecar = Sidecar(keeping=ALL)
    await (await ask(sidecar)).be_answered(b"\x1f\x8b....", coding="gzip")
    assert await read_kept(sidecar) == [None]
    assert (await ask(sidecar)).told == ["operation_incomplete"]


async def test_a_sidecar_that_is_killed_before_the_record_leaves_no_answer() -> None:
    """The record of a whole answer comes behind its last bytes."""
    journal = FailingJournal()
    journal.slow = (OperationEnded,)
    killed = Sidecar(journal=journal, name="1")
    first = await ask(killed)
    await first.start()
    await first.begin_answer(WHOLE[:20])
    first.delivery.receive(ResponseBody(WHOLE[20:], end=True))
    await let_tasks_run()
    assert first.sent.replies[-1] == step.ForwardBody(WHOLE[20:], end=True)
    (operation,) = await journal.list_recent(10)
    assert operation.state is OperationState.RUNNING

    journal.slow = ()
    await leave(journal, killed.keeper.seat)
    await recover(journal)
    again = Sidecar(journal=journal, name="2")
    assert await read_kept(again) == [None]
    assert (await ask(again)).told == ["operation_incomplete"]


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b'{"object":"list","data":[{"embedding":[0.1]}]}\n', True),
        (b'[{"embedding":[0.1]}]', True),
        (b'{"object":"list","data":[{"embedding":[0.1,0', False),
        (b'[{"embedding":[0.1]}', False),
        (b"2.5", True),
    ],
)
async def test_a_document_that_nobody_reads_is_kept_only_if_it_ends_as_it_began(
    body: bytes, kept: bool
) -> None:
    sidecar = Sidecar()
    arrival = {"family": ApiFamily.EMBEDDINGS, "path": "/v1/embeddings"}
    await (await ask(sidecar, **arrival)).be_answered(UNREAD + body)
    assert (await ask(sidecar, **arrival)).told == (["GiveAnswer"] if kept else ["operation_complete"])


async def test_an_error_in_the_place_of_vectors_is_given_to_nobody_again() -> None:
    sidecar = Sidecar()
    arrival = {"family": ApiFamily.EMBEDDINGS, "path": "/v1/embeddings"}
    await (await ask(sidecar, **arrival)).be_answered(b'{"object":"error","message":"m","code":500}')
    assert (await ask(sidecar, **arrival)).told != ["GiveAnswer"]


# --- recorded streams ---------------------------------------------------------------------------

NO_SUCCESS = [
    "vllm_cut_no_finish_no_done",
    "vllm_finish_null_then_done",
    "vllm_abort_then_done",
    "vllm_error_midstream_new",
    "vllm_error_midstream_old",
    "sglang_abort_error_then_done",
    "sglang_abort_graceful",
    "tgi_chat_error_then_done",
]
SUCCESS = ["vllm_chat_ok", "vllm_chat_ok_usage", "sglang_chat_ok", "llamacpp_pings_then_ok", "framing_bom"]


async def play_recorded(sidecar: Sidecar, data: bytes, *, then_close: bool) -> None:
    """A recorded stream, event by event, as far as the sidecar lets it come; cut, or ended in order."""
    client = await ask(sidecar)
    await client.start()
    assert client.live is not None
    assert client.attempt_id is not None
    client.live.receive(AttemptAnswered(client.attempt_id, 200, SSE, "", ReplicaId("a"), end=False))
    client.live.receive(AttemptBody(client.attempt_id, data, end=False))
    await let_tasks_run()
    if isinstance(client.hop.replies[-1], step.ReleaseAttempt):
        client.delivery.receive(ResponseStarted(200, SSE, "", False, None, end=False))
        for event in data.split(b"\n\n"):
            client.delivery.receive(ResponseBody(event + b"\n\n", end=False))
        if not then_close:
            client.delivery.receive(ResponseBody(b"", end=True))
    client.delivery.receive(DeliveryClosed())
    await let_tasks_run()
    await client.leave()
    await sidecar.exchanges.wait_idle()


@pytest.mark.parametrize("then_close", [False, True])
@pytest.mark.parametrize("name", NO_SUCCESS)
async def test_a_stream_that_was_no_success_is_never_given_again(name: str, then_close: bool) -> None:
    sidecar = Sidecar(keeping=ALL)
    await play_recorded(sidecar, (RECORDED / f"{name}.sse").read_bytes(), then_close=then_close)
    (operation,) = await sidecar.journal.list_recent(10)
    assert operation.state is not OperationState.COMPLETED
    assert await read_kept(sidecar) == [None]
    assert (await ask(sidecar)).told != ["GiveAnswer"]


@pytest.mark.parametrize("name", SUCCESS)
async def test_a_whole_stream_is_given_again_as_it_was(name: str) -> None:
    sidecar = Sidecar(keeping=ALL)
    data = (RECORDED / f"{name}.sse").read_bytes()
    await play_recorded(sidecar, data, then_close=False)
    assert (await ask(sidecar)).given.answer.body == b"".join(one + b"\n\n" for one in data.split(b"\n\n"))


def test_a_kept_answer_shows_no_body() -> None:
    assert "Hello" not in repr(KeptAnswer(200, (("content-type", JSON),), WHOLE))
    assert json.loads(WHOLE)["choices"]


# --- many at once -------------------------------------------------------------------------------


async def test_of_a_thousand_requests_with_a_hundred_keys_a_hundred_run() -> None:
    """Refused while the first runs; each comes back until it has the answer, and has the first one's."""
    sidecar = Sidecar()
    waiting = [await ask_soon(sidecar, number) for number in range(1000)]
    runs = 0
    answers: dict[int, set[bytes]] = {}
    while waiting:
        back: list[int] = []
        await let_tasks_run()
        for number, client in waiting:
            if client.runs:
                runs += 1
                await client.be_answered(WHOLE.replace(b"Hello", b"%d-%d" % (number % 100, runs)))
            elif client.told == ["operation_in_progress"]:
                back.append(number)
            else:
                answers.setdefault(number % 100, set()).add(client.given.answer.body)
        waiting = [await ask_soon(sidecar, number) for number in back]
    assert runs == 100
    assert sorted(answers) == list(range(100))
    for key, bodies in answers.items():
        (body,) = bodies
        assert b'"%d-' % key in body
    assert sidecar.watcher.bugs == []


async def ask_soon(sidecar: Sidecar, number: int) -> tuple[int, Client]:
    """A request whose first look at the journal is under way."""
    client = Client(sidecar, key=f"k{number % 100}", request_id=f"req-{number}")
    await asyncio.sleep(0)
    return number, client
