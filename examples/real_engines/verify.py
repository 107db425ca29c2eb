"""Plays an example's scenarios on two real engines behind a real Envoy, and says what did not come.

Exit status 0: everything came as it must. `--keep` leaves it running instead.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from real_engines.engine import Engine, Replica
from real_engines.gateway import Gateway
from real_engines.lease_desk import LeaseDesk
from real_engines.processes import Unexpected, find_free_port
from real_engines.stage import Outcome, Scenario, Stage
from real_engines.worker_stage import Workers, WorkerStage

S = TypeVar("S", bound=Stage)


def main(
    here: Path, engine: Engine, scenarios: Mapping[str, Scenario], workers: Workers | None = None
) -> int:
    """`here` has config.yaml and engine.py, which is started as `engine.py --port N`.

    With `workers` its scenarios are played after the others, on engines that are started anew.
    """
    parser = argparse.ArgumentParser(description="Other options go to engine.py.")
    parser.add_argument("--engine-python", required=True, help="the Python that has the engine")
    parser.add_argument("--keep", action="store_true", help="play nothing: leave it running, print the URLs")
    parser.add_argument("--only", default="", help="play only the scenarios whose title has these words")
    options, engine_options = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    command = [options.engine_python, str(here / "engine.py"), *engine_options]
    played = Played()
    try:
        with tempfile.TemporaryDirectory(prefix=f"envoy-ext-{here.name}-") as directory:
            rig = Rig(here, engine, command, Path(directory))
            if options.keep:
                with rig.run() as stage:
                    keep(stage)
                return 0
            if chosen := choose(scenarios, options.only):
                with rig.run() as stage:
                    played.play_all(stage, chosen)
            if workers is not None and (chosen := choose(workers.scenarios, options.only)):
                with rig.run_with(workers) as stage:
                    played.play_all(stage, chosen)
        if played.failed:
            raise Unexpected(f"{played.failed} scenarios did not come as they must")
    except Unexpected as trouble:
        print(f"NOT SO   {trouble}")
        return 1
    except KeyboardInterrupt:
        return 130
    print("everything came as it must")
    return 0


def choose(scenarios: Mapping[str, Callable[[S], Outcome]], words: str) -> dict[str, Callable[[S], Outcome]]:
    """Those whose title has the words."""
    return {title: play for title, play in scenarios.items() if words in title}


@dataclass(frozen=True)
class Rig:
    """What two engines and the gateway are started from."""

    here: Path
    engine: Engine
    command: list[str]
    directory: Path

    @contextlib.contextmanager
    def run(self) -> Iterator[Stage]:
        """Engines as they come."""
        replicas = self._build_replicas([], {})
        gateway = Gateway(self.here / "config.yaml", replicas, self._make_directory("plain"))
        with self._run_all(gateway, replicas):
            yield Stage(self.engine, gateway, replicas)

    @contextlib.contextmanager
    def run_with(self, workers: Workers) -> Iterator[WorkerStage]:
        """Engines with their workers, which ask at the desk."""
        desk = LeaseDesk()
        try:
            environment = {**workers.environment, "ENVOY_EXT_GATEWAYS": desk.url}
            replicas = self._build_replicas(workers.options, environment)
            directory = self._make_directory("workers")
            gateway = Gateway(self.here / "config.yaml", replicas, directory, with_leases=True)
            desk.gateway_url = gateway.lease_url
            with self._run_all(gateway, replicas):
                yield WorkerStage(self.engine, gateway, replicas, desk, workers.abort_line)
        finally:
            desk.close()

    def _build_replicas(self, options: Sequence[str], environment: Mapping[str, str]) -> dict[str, Replica]:
        directory = self._make_directory("leased" if options else "engines")
        command = [*self.command, *options]
        return {
            name: Replica(name, self.engine, command, find_free_port(), directory, environment)
            for name in "ab"
        }

    def _make_directory(self, name: str) -> Path:
        directory = self.directory / name
        directory.mkdir()
        return directory

    @contextlib.contextmanager
    def _run_all(self, gateway: Gateway, replicas: dict[str, Replica]) -> Iterator[None]:
        """All of them are gone at the end."""
        processes = (gateway, *replicas.values())
        try:
            for replica in replicas.values():
                replica.launch()
            for replica in replicas.values():
                replica.wait_ready()
            gateway.start()
            yield
        except Unexpected:
            for process in processes:
                print(f"--- the end of {process.log.name}\n{process.read_log_end()}")
            raise
        finally:
            for process in processes:
                process.stop()


class Played:
    """Counts scenarios."""

    def __init__(self) -> None:
        self.failed = 0
        self._number = 0

    def play_all(self, stage: S, scenarios: Mapping[str, Callable[[S], Outcome]]) -> None:
        """All of them, and what each side saw; ends the gateway after them."""
        for title, play in scenarios.items():
            self._number += 1
            print(f"{self._number}. {title}", flush=True)
            for replica in stage.replicas.values():
                replica.start()
            stage.gateway.wait_serving()
            outcome = play(stage)
            print(f"   client   {outcome.client}\n   gateway  {outcome.gateway}")
            missing = [what for what, good in outcome.checks.items() if not good]
            for what in missing:
                print(f"   NOT SO   {what}")
            print(flush=True)
            self.failed += bool(missing)
        if stage.gateway.stop() != 0:
            raise Unexpected("the gateway did not end cleanly")


def keep(stage: Stage) -> None:
    """Leave it running for a person."""
    for replica in stage.replicas.values():
        print(f"replica {replica.name}  {replica.url}  process {replica.pid}")
    print(f"clients {stage.gateway.url}  operations {stage.gateway.operations_url}")
    print("Ctrl-C ends it", flush=True)
    signal.pause()
