"""`python -m envoy_ext.drills.scenarios --report DIR`: failures, played and kept (docs/scenarios.md)."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from envoy_ext.adapters.envoy_process import find_envoy
from envoy_ext.domain.errors import ConfigError, EnvoyExtError
from envoy_ext.drills.scenarios.made_up import make_up
from envoy_ext.drills.scenarios.model import FAILURE_POLICY, read_scenarios
from envoy_ext.drills.scenarios.runner import (
    choose,
    find_differences,
    is_good,
    play_everywhere,
    tell,
)
from envoy_ext.drills.scenarios.stores import STORES
from envoy_ext.observability.logs import configure_logging


def main(argv: Sequence[str] | None = None) -> int:
    """0: everything came as it must. 1: something did not. 2: the command or the file is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m envoy_ext.drills.scenarios",
        description="Plays failures against a real Envoy, judges what everybody saw, and keeps it.",
    )
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help="which ones; all unless some are named")
    parser.add_argument("--report", type=Path, required=True, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--seed", default="1", help="of the prompts and the answers")
    parser.add_argument("--store", action="append", choices=STORES, help="may be repeated; all unless given")
    parser.add_argument("--scenarios", type=Path, default=FAILURE_POLICY, metavar="FILE")
    parser.add_argument("--made-up", type=int, metavar="N", help="play so many by chance, and no file")
    parser.add_argument("--envoy", metavar="PATH")
    given = parser.parse_args(argv)
    configure_logging("error")
    try:
        scenarios = read_scenarios(given.scenarios)
        if given.made_up:
            scenarios = scenarios.model_copy(update={"scenarios": make_up(given.seed, given.made_up)})
        scenarios = choose(scenarios, given.names)
        envoy = find_envoy(given.envoy)
        played = asyncio.run(
            play_everywhere(given.store or STORES, scenarios, given.seed, envoy, given.report)
        )
    except ConfigError as error:
        print("\n".join(error.mistakes), file=sys.stderr)
        return 2
    except (ValueError, OSError, EnvoyExtError) as error:
        print(error, file=sys.stderr)
        return 2
    differences = find_differences(played)
    print("\n".join(tell(played, differences)))
    print(f"kept in {given.report}")
    return 0 if is_good(played, differences) else 1


if __name__ == "__main__":
    sys.exit(main())
