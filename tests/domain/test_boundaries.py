"""A request may reach the pools whose boundary its class of data names, and no other."""

from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.boundaries import Boundaries, DataClass
from envoy_ext.domain.ids import PoolName

CHAT, BRANCH, PARTNER, OTHER = (PoolName(name) for name in ("chat", "branch", "partner", "other"))
POOLS = {CHAT: "local", BRANCH: "site", PARTNER: "external:partner", OTHER: "external:other"}

boundary = st.sampled_from(["local", "site", "external:a", "external:b"])
names = st.sampled_from(["default", "public", "health"])


def build(**classes: set[str]) -> Boundaries:
    return Boundaries([DataClass(name, frozenset(allowed)) for name, allowed in classes.items()], POOLS)


def test_without_a_word_only_local_pools_are_reached() -> None:
    assert build().find_allowed(None) == {CHAT}
    assert build(public={"local", "site", "external:partner"}).find_allowed(None) == {CHAT}


def test_a_class_reaches_what_it_names_and_one_outside_stands_for_no_other() -> None:
    classes = build(public={"local", "external:partner"}, far={"site"})
    assert classes.find_allowed("public") == {CHAT, PARTNER}
    assert classes.find_allowed("far") == {BRANCH}


def test_the_configuration_may_say_what_the_default_class_reaches() -> None:
    classes = build(default={"local", "site"})
    assert classes.find_allowed(None) == classes.find_allowed("default") == {CHAT, BRANCH}


def test_a_class_that_is_not_configured_is_taken_for_no_other() -> None:
    for name in ("", "Public", "public ", "public, default", "external"):
        assert build(public={"local"}).find_allowed(name) is None


@given(
    pools=st.dictionaries(st.sampled_from([CHAT, BRANCH, PARTNER]), boundary),
    classes=st.dictionaries(names, st.frozensets(boundary)),
    asked=st.none() | names,
)
def test_whatever_is_configured_what_is_reached_is_what_is_named(
    pools: dict[PoolName, str], classes: dict[str, frozenset[str]], asked: str | None
) -> None:
    allowed = Boundaries([DataClass(*one) for one in classes.items()], pools).find_allowed(asked)
    if asked not in (None, "default") and asked not in classes:
        assert allowed is None
        return
    named = classes.get(asked or "default", frozenset({"local"}))
    assert allowed == {pool for pool, boundary in pools.items() if boundary in named}
