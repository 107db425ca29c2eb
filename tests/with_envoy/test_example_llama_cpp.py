"""The example with a real llama.cpp and a real model: its own script plays it, and says what did not come.

The script installs engine and model by itself, 132 MB the first time, so this is no test that is skipped.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERIFY = ROOT / "examples" / "llama-cpp" / "verify.sh"
LIMIT_S = 800
"""It takes a minute, and the download of a slow network before that."""
STOP_S = 60


@pytest.mark.storm
@pytest.mark.timeout(LIMIT_S + 2 * STOP_S)
def test_real_replicas_that_are_killed_are_replayed_before_the_first_delta_and_told_of_after_it() -> None:
    environment = {**os.environ, "ENVOY_EXT_PYTHON": sys.executable}
    with subprocess.Popen(
        [VERIFY], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as script:
        try:
            output, _ = script.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            script.terminate()  # it ends the processes that it started
            output, _ = script.communicate(timeout=STOP_S)
            output += f"\nstopped after {LIMIT_S} s"
        finally:
            script.kill()
    assert script.returncode == 0, output
    assert output.rstrip().endswith("everything came as it must"), output
