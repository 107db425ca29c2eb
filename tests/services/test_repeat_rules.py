"""What keeps an operation from running again, and what a repeat that runs takes over from it."""

import pytest

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.notes import ReplayRefused
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.tool_calls import CallEnd, CallGranted, CallState, NewCall
from envoy_ext.services.authz import CheckRequest
from tests.support.callers import build_head
from tests.support.keyed import SSE, Client, ask
from tests.support.sidecar import DELTA, Sidecar

RESULT = KeptAnswer(200, (), b"{}")


async def call_tool(client: Client, *, idempotent: bool = False) -> tuple[Operation, CallGranted]:
    """The running attempt of a client's operation calls a tool; the call has left."""
    journal = client.sidecar.journal
    assert client.live is not None
    assert client.attempt_id is not None
    operation = await journal.get(client.live.exchange.identity.operation_id)
    assert operation is not None
    wanted = NewCall(
        operation_id=operation.operation_id,
        attempt_id=AttemptId(client.attempt_id),
        at=1.0,
        tool="pay",
        fingerprint="f" * 64,
        arguments_sha256="a" * 64,
        keyed=False,
        idempotent=idempotent,
    )
    claim = await journal.begin_call(wanted)
    assert isinstance(claim, CallGranted)
    return operation, claim


async def end_call(client: Client, operation: Operation, claim: CallGranted, state: CallState) -> None:
    end = CallEnd(claim.call.call_id, claim.call.grants, 2.0, state, 200)
    result = RESULT if state is CallState.RECORDED else None
    assert await client.sidecar.journal.end_call(operation.ledger_id, end, result)


async def run_with_a_call(
    sidecar: Sidecar, state: CallState | None, *, idempotent: bool = False
) -> Operation:
    """An operation that called a tool, and whose client left before it was given anything."""
    client = await ask(sidecar)
    await client.start()
    operation, claim = await call_tool(client, idempotent=idempotent)
    if state is not None:
        await end_call(client, operation, claim, state)
    await client.leave()
    return operation


async def check(sidecar: Sidecar, **request: object) -> str | None:
    """What ext_authz says to a repeat."""
    asked = {"idempotency_key": "k", "upstream_retry": False, "request_id": "req-9", **request}
    verdict = await sidecar.authz.check(CheckRequest(build_head(**asked)))
    return verdict.code if isinstance(verdict, ClientError) else None


@pytest.mark.parametrize(
    ("state", "code", "retries"),
    [
        (None, "tool_outcome_unknown", 409),
        (CallState.UNKNOWN, "tool_outcome_unknown", 409),
        (CallState.NOT_KEPT, "replay_not_allowed", 503),
    ],
)
async def test_an_operation_whose_call_may_have_acted_does_not_run_again(
    state: CallState | None, code: str, retries: int
) -> None:
    sidecar = Sidecar()
    operation = await run_with_a_call(sidecar, state)
    error = (await ask(sidecar)).error.error
    assert (error.code, error.http_status, error.retry_after_s) == (code, retries, None)
    assert error.operation_id == operation.operation_id
    assert dict(error.headers)["location"] == f"/v1/operations/{operation.operation_id}"
    (refused,) = [one for one in sidecar.watcher.notes if isinstance(one, ReplayRefused)]
    assert (refused.operation_id, refused.code) == (operation.operation_id, code)
    assert "call_" in refused.detail
    assert await check(sidecar) == code


@pytest.mark.parametrize(
    ("state", "idempotent"), [(CallState.RECORDED, False), (CallState.NOT_SENT, False), (None, True)]
)
async def test_a_repeat_that_runs_shares_the_ledger_of_the_first(
    state: CallState | None, idempotent: bool
) -> None:
    sidecar = Sidecar()
    first = await run_with_a_call(sidecar, state, idempotent=idempotent)
    assert await check(sidecar) is None
    second = await ask(sidecar)
    await second.start()
    assert second.live is not None
    again = await sidecar.journal.get(second.live.exchange.identity.operation_id)
    assert again is not None
    assert (again.ledger_id, again.operation_id != first.operation_id) == (first.operation_id, True)
    await second.leave()

    third = await ask(sidecar)
    await third.start()
    assert third.live is not None
    last = await sidecar.journal.get(third.live.exchange.identity.operation_id)
    assert last is not None
    assert last.ledger_id == first.operation_id, "the first one's, however long the chain"


async def test_a_call_of_a_later_link_keeps_the_chain_from_running() -> None:
    sidecar = Sidecar()
    await (await ask(sidecar)).leave()
    await sidecar.exchanges.wait_idle()
    await run_with_a_call(sidecar, CallState.UNKNOWN)
    assert (await ask(sidecar)).told == ["tool_outcome_unknown"]


async def test_the_first_of_a_key_has_a_ledger_of_its_own() -> None:
    sidecar = Sidecar()
    await ask(sidecar)
    (operation,) = await sidecar.journal.list_recent(1)
    assert operation.ledger_id == operation.operation_id


# --- retries of a mesh --------------------------------------------------------------------------


async def test_a_meshs_retry_with_a_key_is_given_the_kept_answer() -> None:
    sidecar = Sidecar()
    await (await ask(sidecar)).be_answered()
    assert (await ask(sidecar, upstream_retry=True)).told == ["GiveAnswer"]


async def test_a_meshs_retry_with_a_key_is_the_repeat_of_what_runs() -> None:
    sidecar = Sidecar()
    first = await ask(sidecar)
    await first.start()
    assert (await ask(sidecar, upstream_retry=True)).told == ["operation_in_progress"]
    await first.begin_answer(DELTA, SSE)
    assert (await ask(sidecar, upstream_retry=True)).told == ["operation_in_progress"]
    await first.leave()
    assert (await ask(sidecar, upstream_retry=True)).told == ["operation_incomplete"]


async def test_a_meshs_retry_that_brings_a_key_of_its_own_does_not_run_what_was_delivered() -> None:
    """The first try had no key; the request id is the same, and the mesh says what it does."""
    sidecar = Sidecar()
    first = await ask(sidecar, key=None)
    await first.start()
    await first.begin_answer(DELTA, SSE)
    assert (await ask(sidecar, key="new", upstream_retry=True)).told == ["operation_incomplete"]
    assert (await ask(sidecar, key="new")).told == ["ForwardRequest"]
    await first.leave()


# --- ext_authz ----------------------------------------------------------------------------------


async def test_ext_authz_agrees_with_the_ingress_as_far_as_it_can_without_a_body() -> None:
    sidecar = Sidecar()
    assert await check(sidecar) is None
    first = await ask(sidecar)
    assert await check(sidecar) == "operation_in_progress"
    assert await check(sidecar, request_id="req-1") is None, "it is this very request"
    await first.be_answered()
    assert await check(sidecar) is None, "the ingress has the body, and gives the answer"
    assert (await ask(sidecar)).told == ["GiveAnswer"]
