"""A replica killed under load: the other is not driven into collapse, and comes through with what it can do.

The short form of `bench/loss_under_load.py`: the same clients, engines, gateway and judge, with shorter
phases and tolerances that tell a collapse from none.
"""

import pytest

from bench.loss.places import LOST
from bench.loss.shape import QUICK
from bench.loss.table import build_rows, tell
from bench.loss.verdict import judge
from bench.loss_under_load import lose_behind_gateway

pytestmark = [pytest.mark.storm, pytest.mark.timeout(120)]

SEED = 7
"""Of the clients' calls: by other seeds so few may come in some seconds that there is nothing to refuse."""


async def test_a_replica_lost_under_load_does_not_take_the_other_with_it() -> None:
    run = await lose_behind_gateway(QUICK, "kill", SEED)
    promises = judge(run)
    print("\n".join(build_rows("kill", run)), tell(promises), sep="\n")
    assert not [one for one in promises if not one.kept]
    assert any(one.replica == LOST and one.started_at > run.marks.back_at for one in run.generations)
    # The loss was one: more was asked for than the other can do, and the SDK came back.
    lost = [one for one in run.tries if run.marks.lost_at <= one.sent_at < run.marks.back_at]
    assert any(one.status >= 400 for one in lost)
    since = [one for one in run.tries if run.marks.lost_at <= one.sent_at]  # when told, or later
    assert any(one.kind != "raw" and not one.request_id.endswith("-1") for one in since)
