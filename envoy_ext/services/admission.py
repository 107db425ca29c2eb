"""What is decided about a request before it becomes an exchange: is it ours, is it readable, whose
pool is it? (Whether it repeats another one: `services.repeat_rules`.)"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import unquote

from envoy_ext.domain.api import MODELS_PATH, ApiFamily, InvalidRequest, ReadRequest, parse_request
from envoy_ext.domain.boundaries import DEFAULT, Boundaries
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.events import RequestArrived
from envoy_ext.domain.ids import PoolName


@dataclass(frozen=True, slots=True)
class Arrival:
    """A whole request, as the delivery filter read it."""

    family: ApiFamily
    path: str
    body: bytes
    content_encoding: str
    request_id: str
    caller: str
    """Hash of the credential, "" without one."""
    idempotency_key: str | None
    deadline_s: float | None
    request_class: str | None
    """What kind of traffic it says it is."""
    data_class: str | None
    """What it says that its data is, None where it says nothing."""
    upstream_retry: bool
    """The request says that an Envoy or mesh before us is repeating it (`x-envoy-attempt-count`)."""
    prefer_wait_s: float | None = None
    """How long its client would rather wait for what still runs than be refused (`Prefer: wait=…`)."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may become an exchange for this pool."""

    request: RequestArrived
    pool: PoolName
    allowed_pools: frozenset[PoolName]
    """All that the class of its data may reach."""
    data_class: str
    prefixes: tuple[bytes, ...] = ()
    """Of its prompt, as hashes: where it was computed, a replay would be cheaper."""


@dataclass(frozen=True, slots=True)
class Forbidden:
    """The request is for a pool that the class of its data may not reach."""

    pool: PoolName
    data_class: str


HashPrompt = Callable[[PoolName, ReadRequest], tuple[bytes, ...]]


class PoolDirectory:
    """Which pool serves which model; fixed by the configuration."""

    def __init__(self, models: dict[str, PoolName], pools: tuple[PoolName, ...]) -> None:
        self._models = models
        self._pools = pools

    def list_models(self) -> tuple[str, ...] | None:
        """The models of all pools; None where there is one, whose engine knows better (adapters, limits)."""
        return tuple(self._models) if len(self._pools) > 1 else None

    def decide_pool(self, arrival: Arrival, model: str | None) -> PoolName | ClientError:
        """The pool for a model; requests that name none go to the only pool there is."""
        if arrival.family is ApiFamily.MODELS and len(self._pools) > 1:
            model = unquote(arrival.path.partition("?")[0].removeprefix(MODELS_PATH + "/"))
        if model is not None:
            pool = self._models.get(model)
            if pool is not None:
                return pool
            message = "model: is not one that this gateway serves; GET /v1/models names them"
            return _invalid(arrival, message, status=404)
        if len(self._pools) == 1 or arrival.family is ApiFamily.OTHER:
            return self._pools[0]
        return _invalid(arrival, "model: is required, since several models are served here")


def decide_admission(
    arrival: Arrival,
    directory: PoolDirectory,
    boundaries: Boundaries,
    max_request_bytes: int,
    hash_prompt: HashPrompt,
) -> Admitted | Forbidden | ClientError:
    """Read the request and find its pool, or say what is wrong with it."""
    if len(arrival.body) > max_request_bytes:
        return ClientError("request_too_large", arrival.request_id)
    allowed = boundaries.find_allowed(arrival.data_class)
    if allowed is None:
        known = ", ".join(boundaries.names)
        return _invalid(arrival, f"x-data-class: is not a class that this gateway knows; use one of {known}")
    try:
        read = parse_request(arrival.family, arrival.body, arrival.content_encoding, path=arrival.path)
    except InvalidRequest as mistake:
        return _invalid(arrival, str(mistake))
    facts = read.facts
    pool = directory.decide_pool(arrival, facts.model)
    if isinstance(pool, ClientError):
        return pool
    data_class = DEFAULT if arrival.data_class is None else arrival.data_class
    if pool not in allowed:
        return Forbidden(pool, data_class)
    digest = sha256(arrival.body).hexdigest()
    path = arrival.path.partition("?")[0]
    request = RequestArrived(facts, path, digest, len(arrival.body), arrival.deadline_s)
    return Admitted(request, pool, allowed, data_class, hash_prompt(pool, read))


def _invalid(arrival: Arrival, message: str, status: int | None = None) -> ClientError:
    return ClientError("invalid_request", arrival.request_id, message=message, status=status)
