"""What is decided about a request before it becomes an exchange: is it ours, is it readable, whose
pool is it? (Whether it repeats another one: `services.repeat_rules`.)"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import unquote

from envoy_ext.domain.api import MODELS_PATH, ApiFamily, InvalidRequest, ReadRequest, parse_request
from envoy_ext.domain.boundaries import DEFAULT, Boundaries
from envoy_ext.domain.callers import ALL_RIGHTS, DENIED, CallerRules, Rights
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
    """What it is known by in the journal and the queue (`heads.Sender`): a hash, "" without a credential."""
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
    rights: Rights = ALL_RIGHTS
    """What its caller may ask for."""
    respond_async: bool = False
    """Its client would rather come back for the answer (`Prefer: respond-async`)."""
    content_type: str = ""


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

    @property
    def pools(self) -> tuple[PoolName, ...]:
        """In the order of the configuration."""
        return self._pools

    def list_models(self, rights: Rights = ALL_RIGHTS) -> tuple[str, ...] | None:
        """The models that a caller may use; None where the engine of the one pool knows better (adapters)."""
        if len(self._pools) == 1 and not rights.limited:
            return None
        return tuple(model for model, pool in self._models.items() if rights.may_use(pool, model))

    def decide_pool(self, arrival: Arrival, model: str | None) -> PoolName | ClientError:
        """The pool for a model; requests that name none go to the only pool there is.

        A model that the caller may not use is answered as one that is not there: OpenAI's API does so too,
        and nobody learns what others have.
        """
        rights = arrival.rights
        if arrival.family is ApiFamily.MODELS and (len(self._pools) > 1 or rights.limited):
            model = unquote(arrival.path.partition("?")[0].removeprefix(MODELS_PATH + "/"))
        if model is not None:
            pool = self._models.get(model)
            if pool is not None and rights.may_use(pool, model):
                return pool
            message = "model: is not one that this gateway serves; GET /v1/models names them"
            return _invalid(arrival, message, status=404)
        if arrival.family is ApiFamily.OTHER:
            if rights.may_use(self._pools[0], None):
                return self._pools[0]
            message = "This caller may not use the pool that this path leads to."
            return ClientError(DENIED, arrival.request_id, message=message)
        if len(self._pools) > 1:
            return _invalid(arrival, "model: is required, since several models are served here")
        if not rights.may_use(self._pools[0], None):
            return _invalid(arrival, "model: is required, since this caller may not use every model")
        return self._pools[0]


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What the configuration says of requests that come in."""

    directory: PoolDirectory
    boundaries: Boundaries
    max_request_bytes: int
    pass_through: tuple[str, ...] = ()
    """Prefixes of paths that pass unread."""
    read_callers: Callable[[], CallerRules] | None = None
    """Who is let in at this moment; None: no credential is checked."""


def decide_allowed(arrival: Arrival, rules: AdmissionRules) -> frozenset[PoolName] | ClientError:
    """The pools that the class of a request's data may reach; or that nobody knows this class."""
    allowed = rules.boundaries.find_allowed(arrival.data_class)
    if allowed is None:
        known = ", ".join(rules.boundaries.names)
        return _invalid(arrival, f"x-data-class: is not a class that this gateway knows; use one of {known}")
    return allowed


def decide_admission(
    arrival: Arrival, rules: AdmissionRules, hash_prompt: HashPrompt
) -> Admitted | Forbidden | ClientError:
    """Read the request and find its pool, or say what is wrong with it."""
    if len(arrival.body) > rules.max_request_bytes:
        return ClientError("request_too_large", arrival.request_id)
    allowed = decide_allowed(arrival, rules)
    if isinstance(allowed, ClientError):
        return allowed
    try:
        read = parse_request(arrival.family, arrival.body, arrival.content_encoding, path=arrival.path)
    except InvalidRequest as mistake:
        return _invalid(arrival, str(mistake))
    facts = read.facts
    pool = rules.directory.decide_pool(arrival, facts.model)
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
