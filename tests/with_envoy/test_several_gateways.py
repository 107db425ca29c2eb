"""Two gateways, each with an Envoy of its own, and one journal file: one key runs once, whoever freezes."""

from tests.with_envoy.pair import run_pair
from tests.with_envoy.pair_checks import (
    check_a_gateway_that_freezes,
    check_a_gateway_that_stops,
    check_a_repeat_that_waits_for_the_other,
    check_the_same_keys_at_once,
)


async def test_a_key_runs_once_at_two_gateways_also_when_one_of_them_freezes() -> None:
    async with run_pair("sqlite") as pair:
        await check_the_same_keys_at_once(pair, 2)
        await check_a_repeat_that_waits_for_the_other(pair)
        await check_a_gateway_that_freezes(pair)
        await check_a_gateway_that_stops(pair)
