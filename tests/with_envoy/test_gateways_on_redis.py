"""Two gateways, each with an Envoy of its own, and a real Redis: a key runs once, whoever freezes or dies."""

from tests.with_envoy.pair import run_pair
from tests.with_envoy.pair_checks import (
    check_a_gateway_that_freezes,
    check_a_gateway_that_is_killed,
    check_a_store_that_stands_still,
    check_the_same_keys_at_once,
)


async def test_a_key_runs_once_at_two_gateways_of_one_redis() -> None:
    async with run_pair("redis") as pair:
        await check_the_same_keys_at_once(pair, 100)
        await check_a_gateway_that_freezes(pair)
        await check_a_store_that_stands_still(pair)
        await check_a_gateway_that_is_killed(pair)
