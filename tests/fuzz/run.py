"""Fuzzes every target, guided by coverage: `python -m tests.fuzz.run --minutes 10` (`make fuzz`).

Two targets at a time, one for each core. A corpus grows in `build/fuzz/<target>/corpus` from run to run. A
finding is kept as `build/fuzz/<target>/finding-*`, and the exit status is 1. What is found and mended
belongs into `tests/fuzz/findings/<target>/`, where a unit test plays it.
"""

import argparse
import importlib
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Final

LANES: Final = (
    (("http2", 1.0),),
    (("bodies", 0.6), ("exposition", 0.2), ("chunks", 0.2)),
)
"""Which targets share a core, and how."""
TARGETS: Final = tuple(name for lane in LANES for name, _ in lane)
BUILD: Final = Path("build/fuzz")
_INSTRUMENTED: Final = ("envoy_ext.http2", "envoy_ext.domain", "envoy_ext.adapters", "hpack")
_ONE_INPUT_S: Final = 20
_MEMORY_MB: Final = 1_500


def find_target(name: str) -> ModuleType:
    """A target's module."""
    return importlib.import_module(f"tests.fuzz.{name}_target")


def main() -> int:
    """Run all targets, or one of them under the fuzzer, or one input alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of all targets together")
    parser.add_argument("--target", choices=TARGETS, help="this one alone")
    parser.add_argument("--seconds", type=int, help="of that one")
    parser.add_argument("--input", type=Path, help="play this file and nothing else")
    asked = parser.parse_args()
    if asked.target is None:
        return fuzz_all(asked.minutes * 60)
    if asked.input is not None:
        find_target(asked.target).check(asked.input.read_bytes())
        return 0
    fuzz(asked.target, asked.seconds or int(asked.minutes * 60))
    return 0


def fuzz_all(seconds: float) -> int:
    """Each lane on its own; 1 when there is a finding."""
    failed: list[str] = []
    lanes = [threading.Thread(target=_run_lane, args=(lane, seconds, failed)) for lane in LANES]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    for name in failed:
        print(f"FINDING in {name}:", *sorted(map(str, (BUILD / name).glob("finding-*"))), sep="\n  ")
    print(
        "no finding" if not failed else "play one alone: python -m tests.fuzz.run --target NAME --input FILE"
    )
    return 1 if failed else 0


def _run_lane(lane: tuple[tuple[str, float], ...], seconds: float, failed: list[str]) -> None:
    for name, share in lane:
        directory = BUILD / name
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("finding-*"):
            old.unlink()
        share_s = str(max(1, int(seconds * share)))
        command = [sys.executable, "-m", "tests.fuzz.run", "--target", name, "--seconds", share_s]
        begun = time.monotonic()
        with (directory / "log").open("wb") as log:
            status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        took_s, figures = time.monotonic() - begun, _read_figures(directory / "log")
        print(f"{name}: {figures} in {took_s:.0f} s, exit {status}", flush=True)
        if status != 0:
            failed.append(name)


def _read_figures(log: Path) -> str:
    """What libFuzzer said last of coverage, features, corpus and inputs."""
    text = log.read_text(errors="replace")
    progress = re.findall(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)", text)
    executed = re.findall(r"number_of_executed_units: (\d+)", text)
    if not progress:
        return f"no progress, see {log}"
    count, coverage, features, corpus = progress[-1]
    count = executed[-1] if executed else count
    return f"{count} inputs, coverage {coverage}, features {features}, corpus {corpus}"


def fuzz(name: str, seconds: int) -> None:
    """One target under atheris, in this process; it ends with it."""
    import atheris

    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        target: Any = find_target(name)
    directory = BUILD / name
    corpus = directory / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    words = directory / "dictionary"
    words.write_text("".join(f'"{_escape(word)}"\n' for word in target.DICTIONARY))

    def scramble(data: bytes, most: int) -> bytes:
        return bytes(atheris.Mutate(data, most)) if most > 0 else b""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        return bytes(target.mutate(data, most, random.Random(seed), scramble))

    options = [
        f"-max_total_time={seconds}",
        f"-max_len={target.LONGEST}",
        f"-dict={words}",
        f"-artifact_prefix={directory}{os.sep}finding-",
        f"-timeout={_ONE_INPUT_S}",
        f"-rss_limit_mb={_MEMORY_MB}",
        "-print_final_stats=1",
        "-len_control=0",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], target.check, custom_mutator=mutate)
    atheris.Fuzz()


def _escape(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    sys.exit(main())
