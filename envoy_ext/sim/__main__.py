"""One simulated engine as a process: `python -m envoy_ext.sim --port 8001 --name a`."""

import argparse
import asyncio
from collections.abc import Sequence

from envoy_ext.sim.engine import run_sim_engine
from envoy_ext.sim.options import SimOptions


def read_options(argv: Sequence[str] | None = None) -> SimOptions:
    """The options from a command line; ends the process with a usage line when they are wrong."""
    defaults = SimOptions()
    parser = argparse.ArgumentParser(prog="python -m envoy_ext.sim", description="A simulated engine.")
    parser.add_argument("--port", type=int, default=defaults.port, help="0 takes a free one")
    parser.add_argument("--host", default=defaults.host)
    parser.add_argument("--name", default=defaults.name, help="the replica's name, also in its text")
    parser.add_argument("--model", action="append", help="a model name it answers to; may be repeated")
    parser.add_argument("--prefill-s", type=float, default=defaults.prefill_s)
    parser.add_argument("--prefill-s-per-1k-tokens", type=float, default=defaults.prefill_s_per_1k_tokens)
    parser.add_argument("--token-s", type=float, default=defaults.token_s)
    parser.add_argument(
        "--token-s-a-neighbour",
        type=float,
        default=defaults.token_s_a_neighbour,
        help="how much longer a token takes for each other request that runs",
    )
    parser.add_argument("--tokens", type=int, default=defaults.tokens, help="length of an answer")
    parser.add_argument("--max-running", type=int, default=defaults.max_running)
    parser.add_argument("--kv-capacity-tokens", type=int, default=defaults.kv_capacity_tokens)
    parser.add_argument("--first-generation", type=int, default=defaults.first_generation)
    parser.add_argument(
        "--notice-s",
        type=float,
        default=defaults.notice_s,
        help="how long it computes on for a client that has gone",
    )
    parser.add_argument("--root", default=defaults.root, help="the path or hub name of its weights")
    parser.add_argument("--cache-dtype", default=defaults.cache_dtype)
    parser.add_argument("--adapter", action="append", help="a LoRA adapter's name; may be repeated")
    parser.add_argument("--seed", default=defaults.seed, help="what its text is drawn from")
    parser.add_argument("--revision", default=defaults.revision, help="of its weights")
    parser.add_argument("--event-log", default=defaults.event_log, help="a file for what it does")
    given = vars(parser.parse_args(argv))
    models, adapters = given.pop("model"), given.pop("adapter")
    try:
        return SimOptions(
            models=tuple(models) if models else defaults.models, adapters=tuple(adapters or ()), **given
        )
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    asyncio.run(run_sim_engine(read_options()))
