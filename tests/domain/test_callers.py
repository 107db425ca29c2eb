"""Whoever shows one known credential is let in as its caller; whatever else is shown lets nobody in."""

from hashlib import sha256
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.callers import (
    LONGEST_KEY,
    SHORTEST_KEY,
    CallerBook,
    CallerEntry,
    CallerRules,
    Credentials,
    KnownCaller,
    Rights,
    UnknownCaller,
    decide_caller,
    is_name,
    read_address,
)
from envoy_ext.domain.ids import PoolName
from tests.support.callers import build_caller_rules, build_entry, digest, make_key

ALICE, BOB = make_key("alice"), make_key("bob")
RULES = build_caller_rules(
    build_entry("alice"),
    build_entry("bob", BOB, make_key("bob-new")),
    build_entry("mallory", disabled=True),
    build_entry("late", expires_at=100.0),
    CallerEntry("keyless"),
    trusted_header="x-caller",
)


def decide(wall: float = 0.0, rules: CallerRules = RULES, **shown: object) -> str | None:
    """The caller's name; None where nobody is let in."""
    decided = decide_caller(Credentials(**shown), rules, wall)  # type: ignore[arg-type]
    return decided.name if isinstance(decided, KnownCaller) else None


def read_refusal(wall: float = 0.0, **shown: object) -> str:
    decided = decide_caller(Credentials(**shown), RULES, wall)  # type: ignore[arg-type]
    assert isinstance(decided, UnknownCaller)
    return decided.message


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_key_may_come_in_three_places_and_the_scheme_in_any_case(scheme: str) -> None:
    assert decide(authorization=f"{scheme} {ALICE}") == "alice"
    assert decide(authorization=f"{scheme}   {ALICE} ") == "alice"
    assert decide(others=(ALICE, "")) == decide(others=("", ALICE)) == "alice"


def test_every_key_of_a_caller_is_its_own() -> None:
    assert decide(others=(BOB,)) == decide(others=(make_key("bob-new"),)) == "bob"


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": ALICE},
        {"authorization": f"Basic {ALICE}"},
        {"authorization": f"Bearer{ALICE}"},
        {"authorization": f"Bearer {ALICE} {ALICE}"},
        {"authorization": f"Bearer {ALICE}", "others": (BOB, "")},
        {"authorization": f"Bearer {ALICE},Bearer {BOB}"},
        {"authorization": f"Basic xyz, Bearer {ALICE}"},
        {"authorization": "Basic xyz", "others": (ALICE, "")},
        {"others": (ALICE, BOB)},
        {"others": (f"{ALICE},{BOB}", "")},
        {"others": (ALICE.swapcase(), "")},
        {"others": (ALICE[:-1], "")},
        {"others": (ALICE + "\udcff", "")},
        {"others": (ALICE + "\u00a0", "")},
        {"others": ("\uff53" + ALICE[1:], "")},
        {"others": (sha256(ALICE.encode()).hexdigest(), "")},
        {"others": ("x" * 60_000, "")},
        {"others": (make_key("mallory"), "")},
    ],
    ids=str,
)
def test_whatever_else_is_shown_lets_nobody_in(shown: dict[str, object]) -> None:
    assert decide(**shown) is None  # type: ignore[arg-type]


def test_one_key_that_stands_twice_is_one() -> None:
    assert decide(authorization=f"Bearer {ALICE}, Bearer {ALICE}", others=(ALICE, ALICE)) == "alice"


def test_a_right_ends_when_it_says_and_its_holder_is_told_so() -> None:
    late = {"others": (make_key("late"), "")}
    assert decide(99.9, **late) == "late"  # type: ignore[arg-type]
    assert decide(100.0, **late) is None  # type: ignore[arg-type]
    assert read_refusal(100.0, **late) == "The right of this caller has expired."


def test_a_disabled_key_is_answered_as_one_that_never_was() -> None:
    assert read_refusal(others=(make_key("mallory"), "")) == read_refusal(others=(make_key("nobody"), ""))


def test_a_short_key_matches_nothing_even_where_its_hash_stands_in_the_file() -> None:
    for length, name in ((SHORTEST_KEY - 1, None), (SHORTEST_KEY, "a"), (LONGEST_KEY + 1, None)):
        key = "k" * length
        assert decide(rules=build_caller_rules(build_entry("a", key)), others=(key, "")) == name


@given(st.text(min_size=SHORTEST_KEY, max_size=60))
def test_no_other_text_is_a_known_key(text: str) -> None:
    assert RULES.book is not None
    assert RULES.book.find_key(text) is None


def test_a_book_tells_nothing_by_which_a_key_could_be_looked_for() -> None:
    """Two processes keep the same digests under other marks."""
    one, other = (CallerBook([build_entry("alice")], blind * 32) for blind in (b"a", b"b"))
    assert one._by_mark.keys().isdisjoint(other._by_mark.keys())
    assert digest(ALICE) not in one._by_mark
    assert one.find_key(ALICE) == other.find_key(ALICE) == build_entry("alice")


# --- the header of a proxy ------------------------------------------------------------------------


@pytest.mark.parametrize("peer", ["127.0.0.1:4711", "127.0.0.1", "[::1]:4711", "::1", "[::ffff:127.0.0.1]:1"])
def test_the_trusted_header_alone_counts_where_it_comes_from_a_trusted_place(peer: str) -> None:
    assert decide(name="alice", peer=peer) == "alice"
    assert decide(name="keyless", peer=peer) == "keyless"
    assert decide(name="alice", peer=peer, others=(BOB, "")) == "alice"


@pytest.mark.parametrize("name", ["", "nobody", "mallory", "alice,bob", "Alice", " alice", "alice\udcff"])
def test_no_other_name_is_let_in_whatever_key_is_beside_it(name: str) -> None:
    assert decide(name=name, peer="127.0.0.1:1", others=(BOB, "")) is None


@pytest.mark.parametrize(
    "peer", ["", "10.0.0.1:80", "127.0.0.10:80", "/run/a.sock", "localhost:1", "[::2]:1", "127.0.0.1.:1"]
)
def test_from_anywhere_else_it_is_not_looked_at(peer: str) -> None:
    assert decide(name="alice", peer=peer) is None
    assert decide(name="alice", peer=peer, others=(BOB, "")) == "bob"


def test_without_a_file_every_name_is_let_in_and_without_a_name_nobody() -> None:
    rules = CallerRules(trusted_header="x-caller", trusted_from=(ip_network("127.0.0.0/8"),))
    assert decide(rules=rules, name="anna@example", peer="127.0.0.2:1") == "anna@example"
    for shown in ({}, {"name": "a b"}, {"name": ""}, {"others": (ALICE, "")}):
        assert decide(rules=rules, peer="127.0.0.2:1", **shown) is None  # type: ignore[arg-type]


def test_a_caller_is_one_and_the_same_by_key_and_by_name() -> None:
    by_key = decide_caller(Credentials(others=(BOB, "")), RULES, 0.0)
    by_name = decide_caller(Credentials(name="bob", peer="::1"), RULES, 0.0)
    assert isinstance(by_key, KnownCaller)
    assert isinstance(by_name, KnownCaller)
    assert by_key == by_name
    assert by_key.id == by_name.id != KnownCaller("alice").id
    assert "bob" not in by_key.id


@pytest.mark.parametrize("text", ["x", "x:1", "x:1:2", "[", "[]", "[::1", "1.2.3", "1.2.3.4:5:6", ":"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert read_address(text) is None or text == "[::1"


# --- rights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "pools", "usable"),
    [
        (None, None, {("chat", "a"), ("chat", "b"), ("chat", None), ("code", "c"), ("code", None)}),
        ({"a"}, set(), {("chat", "a")}),
        (set(), {"code"}, {("code", "c"), ("code", None)}),
        ({"a"}, {"code"}, {("chat", "a"), ("code", "c"), ("code", None)}),
        (set(), set(), set()),
    ],
)
def test_a_model_may_be_used_by_its_name_or_by_its_pool(
    models: set[str] | None, pools: set[str] | None, usable: set[tuple[str, str | None]]
) -> None:
    rights = Rights(
        None if models is None else frozenset(models),
        None if pools is None else frozenset(PoolName(one) for one in pools),
    )
    asked = [("chat", "a"), ("chat", "b"), ("chat", None), ("code", "c"), ("code", None)]
    assert {one for one in asked if rights.may_use(PoolName(one[0]), one[1])} == usable
    assert rights.limited == (models is not None)


def test_names_are_plain_words() -> None:
    assert all(is_name(one) for one in ("a", "team-a", "auth0|5f7c", "anna@example.com", "x" * 128))
    assert not any(is_name(one) for one in ("", "a b", "a,b", "a\n", "\u00e4", "x" * 129))
