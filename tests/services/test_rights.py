"""What a caller may ask for holds for every path, and for all that a request may become."""

import json
from dataclasses import replace

import pytest

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.boundaries import Boundaries, DataClass
from envoy_ext.domain.callers import CallerRules, Credentials, KnownCaller, Rights
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.ids import PoolName
from envoy_ext.services.admission import (
    AdmissionRules,
    Admitted,
    Arrival,
    Forbidden,
    PoolDirectory,
    decide_admission,
)
from envoy_ext.services.heads import Sender, decide_head, decide_sender
from tests.support.callers import build_caller_rules, build_entry, build_head, make_key
from tests.support.clock import ManualClock
from tests.support.sidecar import Sidecar

CHAT, CODE = PoolName("chat"), PoolName("code")
SEVERAL = PoolDirectory({"a": CHAT, "b": CHAT, "c": CODE}, (CHAT, CODE))
ONE = PoolDirectory({"a": CHAT, "b": CHAT}, (CHAT,))
ONLY_A = Rights(frozenset({"a"}), frozenset())
ALL_OF_CODE = Rights(frozenset(), frozenset({CODE}))


def read_head(rights: Rights, **more: object) -> Arrival | ClientError:
    return decide_head(build_head(**more), Sender("x", "x", rights), ("/v1/audio/",), 1000)


def admit(
    rights: Rights,
    model: str | None = None,
    directory: PoolDirectory = SEVERAL,
    outside: frozenset[PoolName] = frozenset(),
    **more: object,
) -> str:
    """The pool it is let in for, or what it is told."""
    arrival = read_head(rights, **more)
    assert isinstance(arrival, Arrival)
    body = {} if model is None else {"model": model}
    boundaries = Boundaries(
        [DataClass("default")], {one: "external:x" if one in outside else "local" for one in (CHAT, CODE)}
    )
    rules = AdmissionRules(directory, boundaries, 1000)
    admitted = decide_admission(
        replace(arrival, body=json.dumps(body).encode()), rules, lambda pool, request: ()
    )
    match admitted:
        case Admitted():
            return admitted.pool
        case Forbidden():
            return "forbidden"
        case ClientError():
            return f"{admitted.http_status} {admitted.code}: {admitted.message}"


NOT_SERVED = "404 invalid_request: model: is not one that this gateway serves; GET /v1/models names them"


@pytest.mark.parametrize("outside", [frozenset[PoolName](), frozenset({CHAT, CODE})])
def test_what_one_may_not_use_is_answered_as_what_is_not_there(outside: frozenset[PoolName]) -> None:
    """Wherever it would have been: where data may not go would tell that there is such a model."""
    for model in ("b", "c", "nowhere"):
        assert admit(ONLY_A, model, outside=outside) == NOT_SERVED
    for model in ("b", "c", "nowhere", "org%2Fc"):
        assert admit(ONLY_A, outside=outside, method="GET", path=f"/v1/models/{model}") == NOT_SERVED
    assert admit(ONLY_A, "a", outside=outside) == ("forbidden" if outside else CHAT)
    assert admit(ONLY_A, method="GET", path="/v1/models/a") == CHAT


def test_a_pool_whose_engine_is_asked_without_a_model_has_to_be_ones_own_as_a_whole() -> None:
    assert admit(Rights(), None, ONE) == CHAT
    assert admit(Rights(frozenset(), frozenset({CHAT})), None, ONE) == CHAT
    assert admit(ONLY_A, None, ONE).startswith("400 invalid_request: model: is required, since this caller")
    assert admit(ONLY_A, "", ONE).startswith("400 invalid_request: model: is required, since this caller")
    assert admit(ONLY_A, "b", ONE) == NOT_SERVED
    assert admit(ONLY_A, None, ONE, method="GET", path="/v1/models/b") == NOT_SERVED
    assert admit(ONLY_A, None).startswith("400 invalid_request: model: is required, since several")


def test_a_path_that_passes_unread_needs_the_pool_that_it_leads_to() -> None:
    path = "/v1/audio/speech"
    assert admit(Rights(), path=path) == CHAT
    assert admit(ALL_OF_CODE, path=path).startswith("403 permission_denied: ")
    assert admit(ONLY_A, path=path).startswith("403 permission_denied: ")


def test_a_caller_is_shown_its_own_models() -> None:
    assert SEVERAL.list_models() == ("a", "b", "c")
    assert SEVERAL.list_models(ONLY_A) == ("a",)
    assert SEVERAL.list_models(ALL_OF_CODE) == ("c",)
    assert ONE.list_models() is None, "its engine knows more than the configuration"
    assert ONE.list_models(ONLY_A) == ("a",)


@pytest.mark.parametrize(("name", "header"), [("request_class", "classes"), ("data_class", "data_classes")])
def test_the_first_class_is_that_of_requests_that_name_none_and_no_other_may_be_named(
    name: str, header: str
) -> None:
    rights = Rights(**{header: ("batch", "chat")})  # type: ignore[arg-type]
    for given, taken in ((None, "batch"), ("batch", "batch"), ("chat", "chat")):
        arrival = read_head(rights, **{name: given})
        assert isinstance(arrival, Arrival)
        assert getattr(arrival, name) == taken
    for given in ("default", "alarm", "Batch", "batch ", "batch,chat"):
        refused = read_head(rights, **{name: given})
        assert isinstance(refused, ClientError)
        assert (refused.code, refused.http_status) == ("permission_denied", 403)
        assert given not in str(refused.message).replace("batch, chat", "") or given == "batch,chat"
    anything = read_head(Rights(), **{name: "alarm"})
    assert isinstance(anything, Arrival)
    assert getattr(anything, name) == "alarm"


def test_an_empty_request_class_is_none_and_an_empty_data_class_is_one_that_nobody_has() -> None:
    arrival = read_head(Rights(classes=("batch",)), request_class="")
    assert isinstance(arrival, Arrival)
    assert arrival.request_class == "batch"
    assert isinstance(read_head(Rights(data_classes=("public",)), data_class=""), ClientError)


def test_nothing_is_said_of_a_request_before_its_caller_is_known() -> None:
    rules = build_caller_rules(build_entry("alice"))
    worst = {"path": "/nowhere", "mistakes": ("x",), "content_length": 10**9, "data_class": "a,b"}
    stranger = decide_sender(build_head(**worst), rules, 0.0)
    assert isinstance(stranger, ClientError)
    assert (stranger.code, stranger.http_status) == ("invalid_api_key", 401)
    assert stranger.headers == (("www-authenticate", "Bearer"),)
    known = decide_sender(build_head(credentials=Credentials(others=(make_key("alice"),))), rules, 0.0)
    assert isinstance(known, Sender)
    assert (known.name, known.id != "hash") == ("alice", True)
    assert decide_sender(build_head(credential_hash="hash"), None, 0.0) == Sender("hash")


def test_a_body_that_says_it_is_too_long_is_not_waited_for() -> None:
    within, beyond = read_head(Rights(), content_length=1000), read_head(Rights(), content_length=1001)
    assert isinstance(within, Arrival)
    assert within.family is ApiFamily.CHAT
    assert isinstance(beyond, ClientError)
    assert beyond.code == "request_too_large"


async def test_what_runs_later_is_held_against_what_its_caller_may_do_by_then() -> None:
    clock = ManualClock()
    limited = Rights(frozenset({"branch"}), frozenset())
    rules = build_caller_rules(
        build_entry("alice"),
        build_entry("bob", rights=limited),
        build_entry("late", expires_at=clock.wall() + 1),
        build_entry("gone", disabled=True),
    )
    sidecar = Sidecar(callers=rules, clock=clock)

    def admit_again(caller: str) -> str:
        admitted = sidecar.arrivals.admit_again(sidecar.build_arrival(caller=KnownCaller(caller).id))
        return admitted.code if isinstance(admitted, ClientError) else type(admitted).__name__

    assert [admit_again(name) for name in ("alice", "late")] == ["Admitted", "Admitted"]
    assert admit_again("bob") == "invalid_request"
    clock.advance(1.0)
    for name in ("late", "gone", "nobody"):
        assert admit_again(name) == "permission_denied"
    anybody = Sidecar(clock=clock)
    assert isinstance(anybody.arrivals.admit_again(anybody.build_arrival(caller="x")), Admitted)
    by_name = Sidecar(clock=clock, callers=CallerRules(trusted_header="x-caller"))
    assert isinstance(by_name.arrivals.admit_again(by_name.build_arrival(caller="x")), Admitted)
