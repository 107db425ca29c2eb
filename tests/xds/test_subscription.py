"""What a client asked for and was told, in the words of the protocol's own examples."""

import pytest

from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.subscription import Change, ChangeNames, Due, SetNames, Subscription
from tests.xds.builders import cluster, clusters_with_endpoints, endpoints_alone, pool

CLUSTERS = clusters_with_endpoints(a=(1, 1), b=(1, 1)).offers[Kind.CDS]
A, B = CLUSTERS["pool_a"], CLUSTERS["pool_b"]


def ask(*names: str) -> SetNames:
    return SetNames(names)


def change(subscribe: str = "", unsubscribe: str = "", **held: str) -> ChangeNames:
    return ChangeNames(tuple(subscribe.split()), tuple(unsubscribe.split()), held)


def take(subscription: Subscription, offer: dict) -> Due:
    """What is due; it counts as sent."""
    due = subscription.find_due(offer)
    subscription.note_told(due.changed, (*due.unknown, *due.gone))
    return due


def names(due: Due) -> list[str]:
    return [one.name for one in due.changed]


# --- which names: the examples of #how-the-client-specifies-what-resources-to-return -----------------


@pytest.mark.parametrize(
    ("changes", "wildcard", "watched"),
    [
        ([ask()], True, set()),
        ([ask(), ask("*", "A")], True, {"A"}),
        ([ask(), ask("*", "A"), ask("A")], False, {"A"}),
        ([ask(), ask("*", "A"), ask("A"), ask()], False, set()),
        ([ask(), ask()], True, set()),
        ([ask("A"), ask()], False, set()),
        ([ask("*"), ask()], False, set()),
        ([change()], True, set()),
        ([change(), change("A")], True, {"A"}),
        ([change(), change("A"), change(unsubscribe="*")], False, {"A"}),
        ([change(), change("A"), change(unsubscribe="*"), change(unsubscribe="A")], False, set()),
        ([change("A")], False, {"A"}),
        ([change("*")], True, set()),
        ([change("A"), change(unsubscribe="B")], False, {"A"}),
    ],
)
def test_names_of_clusters(changes: list[Change], wildcard: bool, watched: set[str]) -> None:
    subscription = Subscription(Kind.CDS)
    for one in changes:
        subscription.change(one)
    assert subscription.wildcard is wildcard
    assert subscription.names == watched


@pytest.mark.parametrize("kind", [Kind.EDS, Kind.RDS])
@pytest.mark.parametrize("none", [ask(), change()])
def test_no_names_of_endpoints_or_routes_are_none(kind: Kind, none: Change) -> None:
    subscription = Subscription(kind)
    subscription.change(none)
    assert not subscription.wildcard
    assert not subscription.find_due(endpoints_alone(a=1).offers[Kind.EDS])


def test_endpoints_can_be_asked_for_altogether_by_saying_so() -> None:
    subscription = Subscription(Kind.EDS)
    subscription.change(ask("*"))
    assert names(take(subscription, endpoints_alone(a=1, b=2).offers[Kind.EDS])) == ["pool_a", "pool_b"]


# --- what is due ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [ask(), change()])
def test_what_was_told_is_not_due_again(first: Change) -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(first)
    assert names(take(subscription, CLUSTERS)) == ["pool_a", "pool_b"]
    assert not subscription.find_due(CLUSTERS)


@pytest.mark.parametrize("first", [ask(), change()])
def test_the_first_answer_is_due_even_if_nothing_is_offered(first: Change) -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(first)
    assert take(subscription, {}) == Due(first=True)
    assert not subscription.find_due({})


@pytest.mark.parametrize("first", [ask("pool_x"), change("pool_x")])
def test_an_unknown_name_is_told_once_and_sent_when_it_springs_into_existence(first: Change) -> None:
    subscription = Subscription(Kind.EDS)
    subscription.change(first)
    assert take(subscription, {}) == Due(unknown=("pool_x",))
    assert not subscription.find_due({})
    assert names(take(subscription, {"pool_x": pool("x", 1)})) == ["pool_x"]
    assert take(subscription, {}).gone == ("pool_x",)
    assert not subscription.find_due({})


@pytest.mark.parametrize(
    ("first", "second"), [(ask("pool_a"), ask("pool_a", "pool_b")), (change("pool_a"), change("pool_b"))]
)
def test_a_further_name_makes_only_itself_due(first: Change, second: Change) -> None:
    subscription = Subscription(Kind.EDS)
    offer = endpoints_alone(a=1, b=1).offers[Kind.EDS]
    subscription.change(first)
    take(subscription, offer)
    subscription.change(second)
    assert names(subscription.find_due(offer)) == ["pool_b"]


@pytest.mark.parametrize(
    ("first", "away", "back"),
    [
        (ask("pool_a"), ask(), ask("pool_a")),
        (change("pool_a"), change(unsubscribe="pool_a"), change("pool_a")),
    ],
)
def test_a_name_that_comes_back_is_due_though_nothing_changed(
    first: Change, away: Change, back: Change
) -> None:
    subscription = Subscription(Kind.EDS)
    offer = endpoints_alone(a=1).offers[Kind.EDS]
    for one, due in ((first, ["pool_a"]), (away, []), (back, ["pool_a"])):
        subscription.change(one)
        assert names(take(subscription, offer)) == due


def test_subscribing_again_makes_due_again() -> None:
    """A delta client may have forgotten what it is subscribed to."""
    subscription = Subscription(Kind.CDS)
    subscription.change(change("pool_a"))
    take(subscription, CLUSTERS)
    subscription.change(change("pool_a"))
    assert names(subscription.find_due(CLUSTERS)) == ["pool_a"]


def test_asking_by_name_for_what_the_wildcard_sent_makes_it_due() -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(ask())
    take(subscription, CLUSTERS)
    subscription.change(ask("*", "pool_a"))
    assert names(take(subscription, CLUSTERS)) == ["pool_a"]
    subscription.change(ask("pool_a"))
    assert not subscription.find_due(CLUSTERS)


@pytest.mark.parametrize(
    ("offer", "due"), [(CLUSTERS, Due(changed=(A,))), ({"pool_b": B}, Due(gone=("pool_a",)))]
)
def test_leaving_a_name_under_a_wildcard_is_answered(offer: dict, due: Due) -> None:
    """The client cannot know whether the wildcard covers it."""
    subscription = Subscription(Kind.CDS)
    subscription.change(change("* pool_a"))
    take(subscription, offer)
    subscription.change(change(unsubscribe="pool_a"))
    assert take(subscription, offer) == due
    assert not subscription.find_due(offer)


def test_leaving_a_name_that_was_never_asked_for_is_nothing() -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(change())
    take(subscription, CLUSTERS)
    subscription.change(change(unsubscribe="pool_a pool_x"))
    assert not subscription.find_due(CLUSTERS)


# --- reconnects and refusals ------------------------------------------------------------------------


def test_after_a_reconnect_only_the_difference_is_due() -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(change(pool_a=A.version, pool_b="older", pool_c="gone"))
    due = take(subscription, CLUSTERS)
    assert names(due) == ["pool_b"]
    assert due.gone == ("pool_c",)
    assert not subscription.find_due(CLUSTERS)


@pytest.mark.parametrize("subscribe", ["pool_a", "pool_a pool_b", "*"])
def test_after_a_reconnect_what_is_gone_is_named_however_it_was_asked_for(subscribe: str) -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(change(subscribe, pool_a=A.version, pool_b=B.version))
    due = take(subscription, {"pool_a": A})
    assert (names(due), [*due.unknown, *due.gone]) == ([], ["pool_b"])


def test_held_versions_count_on_the_first_request_alone() -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(change("pool_a"))
    subscription.change(change("pool_b", pool_b=B.version))
    assert names(subscription.find_due(CLUSTERS)) == ["pool_a", "pool_b"]


def test_endpoints_are_due_after_a_reconnect_whatever_is_held() -> None:
    """A cluster may have been warming when the last stream broke."""
    resource = pool("a", 1)
    subscription = Subscription(Kind.EDS)
    subscription.change(change("pool_a", pool_a=resource.version))
    assert names(subscription.find_due({"pool_a": resource})) == ["pool_a"]


@pytest.mark.parametrize("first", [ask("pool_a"), change("pool_a")])
def test_refused_content_is_not_due_until_it_changes(first: Change) -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(first)
    take(subscription, {"pool_a": A})
    subscription.note_refusal(["pool_a"])
    assert subscription.has_refused
    assert not subscription.find_due({"pool_a": A})
    assert names(take(subscription, {"pool_a": cluster("a", 2)})) == ["pool_a"]
    assert not subscription.has_refused


def test_asking_again_for_refused_content_does_not_bring_it() -> None:
    """Refusing and asking in turn would never end."""
    subscription = Subscription(Kind.CDS)
    subscription.change(change("pool_a"))
    take(subscription, CLUSTERS)
    subscription.note_refusal(["pool_a"])
    subscription.change(change("pool_a"))
    assert not subscription.find_due(CLUSTERS)


def test_refused_content_may_be_tried_again_once_its_name_was_left() -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(change("pool_a"))
    take(subscription, CLUSTERS)
    subscription.note_refusal(["pool_a"])
    subscription.change(change(unsubscribe="pool_a"))
    assert not subscription.has_refused
    subscription.change(change("pool_a"))
    assert names(subscription.find_due(CLUSTERS)) == ["pool_a"]


def test_a_refusal_of_a_name_that_was_left_says_nothing() -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(change("pool_a"))
    take(subscription, CLUSTERS)
    subscription.change(change(unsubscribe="pool_a"))
    subscription.note_refusal(["pool_a"])
    assert not subscription.has_refused


def test_what_was_refused_together_is_due_one_by_one() -> None:
    subscription = Subscription(Kind.CDS)
    subscription.change(change())
    take(subscription, CLUSTERS)
    subscription.offer_singly(["pool_a", "pool_b"])
    offer = {**CLUSTERS, "pool_c": cluster("c")}
    sent = []
    while due := subscription.find_due(offer):
        together = subscription.choose_together(due.changed)
        subscription.note_told(together, ())
        sent.append([one.name for one in together])
    assert sent == [["pool_c"], ["pool_a"], ["pool_b"]]
