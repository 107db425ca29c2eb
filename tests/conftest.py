"""Read before every other test module: whose asserts explain themselves, and that no example is timed."""

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("envoy_ext", deadline=None)
settings.load_profile("envoy_ext")

for _helper in ("gateway", "asking", "wire"):
    # It must stand before their import, and other folders' tests import them too.
    pytest.register_assert_rewrite(f"tests.with_envoy.{_helper}")
