"""Moments as people write them, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.adapters.moment_codec import parse_moment, parse_when
from envoy_ext.adapters.operation_codec import format_time

NOW = 1_750_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-06-15T15:06:40Z", NOW),
        ("2025-06-15t15:06:40z", NOW),
        ("2025-06-15 15:06:40Z", NOW),
        ("2025-06-15T17:06:40+02:00", NOW),
        ("2025-06-15T09:36:40-05:30", NOW),
        ("2025-06-15T15:06:40.25Z", NOW + 0.25),
        ("2025-06-15T15:06:40.123456789Z", NOW + 0.123456789),
        ("2025-06-15", 1_749_945_600.0),
        ("2024-02-29", 1_709_164_800.0),
    ],
)
def test_a_moment_is_read(text: str, expected: float) -> None:
    assert parse_moment(text) == pytest.approx(expected, abs=1e-6)
    assert parse_when(text, NOW) == parse_moment(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800)]
)
def test_so_long_ago_is_read(text: str, seconds: int) -> None:
    assert parse_when(text, NOW) == NOW - seconds
    with pytest.raises(ValueError, match="not a moment"):
        parse_moment(text)


def test_longer_ago_than_clocks_know_is_their_beginning() -> None:
    assert parse_when("999999999d", NOW) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "yesterday",
        "1750000000",
        "2025-06-15T15:06:40",
        "2025-06-15T15:06Z",
        "2025-06-31",
        "2023-02-29",
        "2025-06-15T25:00:00Z",
        "2025-06-15T15:06:40+99:99",
        "2025-W24-7",
        "20250615",
        "2025-06-15Z",
        " 2025-06-15",
        "2025-06-15\n",
        "\u0662\u0660\u0662\u0665-06-15",
        "-1h",
        "1.5h",
        "1w",
        "h",
        "9999999999d",
    ],
)
def test_what_is_no_moment_is_told_how_one_is_written(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 2026-11-30T18:00:00Z .*15m, 24h, 7d"):
        parse_when(text, NOW)


@given(st.floats(0, 4e9))
def test_what_is_shown_is_read_again(at: float) -> None:
    shown = format_time(at)
    assert shown is not None
    assert parse_moment(shown) == pytest.approx(at, abs=0.000_51)
