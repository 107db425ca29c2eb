"""The bootstraps in `envoy/` are the renderings of the configurations beside them."""

import difflib
from pathlib import Path

import pytest

from envoy_ext.bootstrap.render import render_bootstrap_yaml
from envoy_ext.config import load_config

ENVOY = Path(__file__).parents[2] / "envoy"
REGENERATE = "make render"


@pytest.mark.parametrize("form", ["", "-xds"])
def test_the_committed_bootstrap_is_the_rendering_of_the_committed_configuration(form: str) -> None:
    rendered = render_bootstrap_yaml(load_config(ENVOY / f"config{form}.yaml"))
    name = f"bootstrap{form}.yaml"
    committed = (ENVOY / name).read_text()
    difference = "\n".join(
        difflib.unified_diff(committed.splitlines(), rendered.splitlines(), name, "rendering", lineterm="")
    )
    assert not difference, f"{difference}\n\nif this is what you want: {REGENERATE}"


def test_the_same_configuration_gives_the_same_text_each_time() -> None:
    config = load_config(ENVOY / "config.yaml")
    assert render_bootstrap_yaml(config) == render_bootstrap_yaml(config)
