"""Read before every other test module: whose asserts explain themselves, and that no example is timed."""

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, to play or to draw, says how busy the machine is.
settings.register_profile("envoy_ext", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("envoy_ext")

for _helper in ("gateway", "asking", "wire"):
    # It must stand before their import, and other folders' tests import them too.
    pytest.register_assert_rewrite(f"tests.with_envoy.{_helper}")
