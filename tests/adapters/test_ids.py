"""Ids say what they name, sort by time, and cannot be guessed from their neighbours."""

import re
from unittest.mock import patch

import pytest
from ulid import ULID as ReferenceULID

from envoy_ext.adapters.ids import mint_attempt_id, mint_exchange_id, mint_operation_id

ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}"


@pytest.mark.parametrize(
    ("mint", "shape"),
    [
        (mint_operation_id, f"op_{ULID}"),
        (mint_attempt_id, f"att_{ULID}"),
        (mint_exchange_id, f"exg_{ULID}[0-9a-f]{{32}}"),
    ],
)
def test_an_id_is_a_prefix_and_a_ulid_and_an_exchanges_id_has_128_bits_more(mint, shape: str) -> None:
    assert re.fullmatch(shape, mint())


def test_ids_sort_by_the_millisecond_they_were_minted_in() -> None:
    with patch("envoy_ext.adapters.ids.time.time_ns") as time_ns:
        minted = []
        for time_ns.return_value in (
            1_750_000_000_000_000_000,
            1_750_000_000_001_000_000,
            1_750_000_001 * 10**9,
        ):
            minted.append(mint_operation_id())
    assert minted == sorted(minted)


def test_ids_of_one_millisecond_share_their_time_and_nothing_else() -> None:
    with patch("envoy_ext.adapters.ids.time.time_ns", return_value=1_750_000_000_000_000_000):
        minted = [mint_operation_id().removeprefix("op_") for _ in range(2_000)]
        exchanges = [mint_exchange_id() for _ in range(2_000)]
    assert {id_[:10] for id_ in minted} == {minted[0][:10]}
    assert len({id_[10:18] for id_ in minted}) == 2_000  # a counter would leave these high bits alike
    assert len({id_[-32:] for id_ in exchanges}) == 2_000


@pytest.mark.parametrize(
    ("milliseconds", "drawn"),
    [
        (0, bytes(10)),
        (1_750_000_000_123, bytes(range(246, 256))),
        (1_750_000_000_123, b"\x01\x23\x45\x67\x89\xab\xcd\xef\x10\x32"),
        ((1 << 48) - 1, b"\xff" * 10),
    ],
)
def test_an_id_has_the_digits_that_another_ulid_library_gives_it(milliseconds: int, drawn: bytes) -> None:
    expected = str(ReferenceULID.from_bytes(milliseconds.to_bytes(6, "big") + drawn))
    with (
        patch("envoy_ext.adapters.ids.time.time_ns", return_value=milliseconds * 1_000_000),
        patch("envoy_ext.adapters.ids.os.urandom", return_value=drawn),
    ):
        assert mint_operation_id() == f"op_{expected}"
