"""`GET /v1/jobs` and a job at `/v1/operations/{id}`: whole listings, and nothing of a request."""

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain.ids import OperationId
from tests.support.jobs import BODY, job_end, submit
from tests.support.ops_port import OpsPort


async def test_jobs_are_listed_in_their_order_and_page_by_page_each_once(ops: OpsPort) -> None:
    assert isinstance(ops.journal, MemoryJournal)
    jobs = [await submit(ops.journal, f"op_{n}") for n in range(5)]
    await ops.journal.finish_job(jobs[1].job_id, jobs[1].token, job_end())
    listed, after = [], 0
    while True:
        reply = await ops.ask(f"/v1/jobs?limit=2&after={after}")
        listed += [one["operation_id"] for one in reply.json["jobs"]]
        if reply.json["next"] is None:
            break
        after = reply.json["next"]
    assert listed == ["op_0", "op_2", "op_3", "op_4"]
    ended = (await ops.ask("/v1/jobs?state=succeeded,failed")).json["jobs"]
    assert [(one["operation_id"], one["job"]["state"], one["state"]) for one in ended] == [
        ("op_1", "succeeded", "completed")
    ]


async def test_a_job_is_shown_by_its_id_before_it_has_run_and_without_its_request(ops: OpsPort) -> None:
    assert isinstance(ops.journal, MemoryJournal)
    await submit(ops.journal, "op_7")
    reply = await ops.ask("/v1/operations/op_7")
    assert (reply.status, reply.json["phase"], reply.json["owner"]) == (200, "queued", None)
    assert reply.json["job"]["runs"] == []
    seat = await ops.journal.take_seat("gw")
    job = await ops.journal.read_job(OperationId("op_7"))
    assert job is not None
    await ops.journal.claim_job(job.job_id, job.token, seat, job.job_id)
    shown = (await ops.ask("/v1/operations/op_7")).json
    assert (shown["job"]["state"], shown["owner"], shown["state"]) == ("running", seat, "running")
    assert BODY.decode("latin-1") not in reply.text


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("state=done", "state"),
        ("limit=0", "limit"),
        ("after=x", "after"),
        ("limit=1&limit=2", "limit"),
        ("a=1", "state"),
    ],
)
async def test_a_query_that_cannot_be_meant_is_told_which_part(ops: OpsPort, query: str, part: str) -> None:
    reply = await ops.ask(f"/v1/jobs?{query}")
    assert reply.status == 400
    assert part in reply.json["error"]["message"]
