"""Helpers whose asserts should say as much as those of the tests."""

import pytest

for _helper in ("peer",):
    pytest.register_assert_rewrite(f"tests.xds.{_helper}")
