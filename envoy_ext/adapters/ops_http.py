"""The operations port: health, metrics, and what the journal and the configuration say, over HTTP.

It shares the event loop with the streams, so every answer is small or paged, and it never speaks
to clients of the ingress: operation ids and request ids are for operators here.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder
from prometheus_client.registry import Collector

from envoy_ext.adapters.operation_codec import build_job_operator_json, build_operator_json
from envoy_ext.adapters.ops_answers import (
    PoolView,
    ReplicaView,
    build_callers_json,
    build_error,
    build_json,
    build_pool_json,
    build_replica_json,
)
from envoy_ext.adapters.ops_capacity import build_capacity_json
from envoy_ext.adapters.ops_connection import SERVER_NAME, OpsConnection
from envoy_ext.adapters.ops_guard import build_change_guard, build_host_check, read_token_file
from envoy_ext.adapters.ops_jobs import list_jobs_page, read_jobs_query
from envoy_ext.adapters.ops_operations import (
    BadQuery,
    encode_page,
    list_page,
    read_listing_query,
    read_operation_id,
)
from envoy_ext.domain.capacity_report import PoolCapacity
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.ports import Observer, Store
from envoy_ext.services.callers import CallersView
from envoy_ext.services.health import HealthState

JOURNAL_PROBE_S: Final = 1.0
"""How long the readiness check waits for the journal: the default timeout of a kubelet's probe."""
DRAIN_LIMIT_S: Final = 300
"""How long a drained replica's streams may take unless the order says: Kubernetes' own pods get 30 s, but
an answer can take minutes."""
STOP_S: Final = 1.0
"""How long answers under way may take when the port closes."""
_MAX_BODY_BYTES: Final = 64 * 1024

_INDEX: Final = """envoy-ext operations port

GET /healthz/startup      everything is put together
GET /healthz/live         a restart would not help
GET /healthz/ready        requests may be sent here
GET /metrics              Prometheus or OpenMetrics text
GET /v1/operations        the journal, newest first: ?limit=&before=&state=
                          from a moment on, oldest first: ?since=&limit=&after=&state=
GET /v1/operations/{id}   one operation, or job
GET /v1/jobs              those that have not ended, or are in a state, oldest first: ?state=&limit=&after=
GET /v1/pools             the pools
GET /v1/replicas          the replicas
GET /v1/callers           who is let in, and what is wrong with their file
GET /v1/capacity          the room of each pool, and what losing a replica, a node or a zone would leave
POST /v1/replicas/{id}/drain    take a replica out: ?limit_s= how long its streams are waited for
POST /v1/replicas/{id}/undrain  take the order back
"""


class OpsServer:
    """Owns the listening socket and reads from what it is given. `start` once, `stop` once.

    `count_inflight` is how many exchanges are open, for whoever watches a drain.
    """

    def __init__(
        self,
        *,
        journal: Store,
        registry: CollectorRegistry,
        health: HealthState,
        observer: Observer,
        token_file: str | None,
        count_inflight: Callable[[], int],
        list_replicas: Callable[[], Sequence[ReplicaView]],
        list_pools: Callable[[], Sequence[PoolView]],
        list_capacity: Callable[[], Sequence[PoolCapacity]],
        show_callers: Callable[[], CallersView | None] = lambda: None,
        drain: Callable[[ReplicaId, float], bool],
        undrain: Callable[[ReplicaId], bool],
    ) -> None:
        self._journal = journal
        self._page = _WithoutCreated(registry)
        self._health = health
        self._observer = observer
        self._token_file = token_file
        self._count_inflight = count_inflight
        self._list_replicas = list_replicas
        self._list_pools = list_pools
        self._list_capacity = list_capacity
        self._show_callers = show_callers
        self._drain = drain
        self._undrain = undrain
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    async def start(self, address: str, port: int) -> int:
        """Listen (port 0 picks one) and serve; returns the port.

        Raises:
            OSError: the address cannot be listened at.
            ConfigError: the token file cannot be used.
        """
        token = None if self._token_file is None else read_token_file(self._token_file)
        runner = web.AppRunner(self._build_app(address, token), shutdown_timeout=STOP_S)
        await runner.setup()
        server = runner.server
        assert server is not None, "setup makes it"
        try:
            listener = await asyncio.get_running_loop().create_server(
                lambda: OpsConnection(server, self._observer), address, port
            )
        except OSError:
            await runner.cleanup()
            raise
        self._runner, self._listener = runner, listener
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def _build_app(self, address: str, token: str | None) -> web.Application:
        app = web.Application(
            middlewares=[
                _build_error_answers(self._observer),
                build_host_check(address),
                build_change_guard(token),
            ],
            client_max_size=_MAX_BODY_BYTES,
        )
        app.on_response_prepare.append(_set_common_headers)
        app.add_routes(
            [
                web.get("/", self._get_index),
                web.get("/healthz/startup", self._get_startup),
                web.get("/healthz/live", self._get_live),
                web.get("/healthz/ready", self._get_ready),
                web.get("/metrics", self._get_metrics),
                web.get("/v1/operations", self._get_operations),
                web.get("/v1/operations/{id}", self._get_operation),
                web.get("/v1/jobs", self._get_jobs),
                web.get("/v1/pools", self._get_pools),
                web.get("/v1/replicas", self._get_replicas),
                web.get("/v1/capacity", self._get_capacity),
                web.get("/v1/callers", self._get_callers),
                web.post("/v1/replicas/{id}/drain", self._post_drain),
                web.post("/v1/replicas/{id}/undrain", self._post_undrain),
            ]
        )
        return app

    async def _get_index(self, _request: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    async def _get_startup(self, _request: web.Request) -> web.Response:
        return self._answer_health(self._health.find_startup_faults())

    async def _get_live(self, _request: web.Request) -> web.Response:
        # That this runs at all is most of the answer: the event loop takes its turns.
        return self._answer_health(self._health.find_live_faults())

    async def _get_ready(self, _request: web.Request) -> web.Response:
        faults = self._health.find_ready_faults()
        asked = "journal" not in faults and not self._health.serves_without_store()
        if asked and not await self._can_read_journal():
            faults = (*faults, "journal")
        return self._answer_health(faults, survives=sorted(self._journal.guarantees))

    def _answer_health(self, faults: tuple[str, ...], **more: object) -> web.Response:
        body: dict[str, object] = {
            "status": "failing" if faults else "ok",
            "failing": list(faults),
            "inflight": self._count_inflight(),
            **more,
        }
        if "fatal" in faults:
            body["fatal"] = self._health.fatal
        return build_json(503 if faults else 200, body)

    async def _can_read_journal(self) -> bool:
        """Writing is proved by the appends of real requests; this sees a store that is closed or hangs."""
        with suppress(JournalUnavailable, TimeoutError):
            async with asyncio.timeout(JOURNAL_PROBE_S):
                await self._journal.list_recent(1)
                return True
        return False

    async def _get_metrics(self, request: web.Request) -> web.Response:
        try:
            encode, content_type = choose_encoder(",".join(request.headers.getall(hdrs.ACCEPT, [])))
        except (TypeError, ValueError):
            # A version in Accept that is no number; what every scraper reads is the answer to that.
            encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
        return web.Response(body=encode(self._page), headers={hdrs.CONTENT_TYPE: content_type})

    async def _get_operations(self, request: web.Request) -> web.Response:
        try:
            page = await list_page(self._journal, read_listing_query(request.query.items()))
        except BadQuery as mistake:
            return build_error(400, "invalid_request", str(mistake))
        return web.json_response(text=await encode_page(page))

    async def _get_operation(self, request: web.Request) -> web.Response:
        operation_id = read_operation_id(request.match_info["id"])
        job = None if operation_id is None else await self._journal.read_job(operation_id)
        if job is not None:
            run = None if job.run_id is None else await self._journal.get(job.run_id)
            calls = await self._journal.read_calls(job.ledger_id)
            return build_json(200, build_job_operator_json(job, run, calls))
        operation = None if operation_id is None else await self._journal.get(operation_id)
        if operation is None:
            return build_error(404, "not_found", "The journal knows no operation of this id.")
        calls = await self._journal.read_calls(operation.ledger_id)
        return build_json(200, build_operator_json(operation, calls))

    async def _get_jobs(self, request: web.Request) -> web.Response:
        try:
            query = read_jobs_query(request.query.items())
        except BadQuery as mistake:
            return build_error(400, "invalid_request", str(mistake))
        return build_json(200, await list_jobs_page(self._journal, query))

    async def _get_pools(self, _request: web.Request) -> web.Response:
        return build_json(200, {"pools": [build_pool_json(pool) for pool in self._list_pools()]})

    async def _get_replicas(self, _request: web.Request) -> web.Response:
        return build_json(200, {"replicas": [build_replica_json(one) for one in self._list_replicas()]})

    async def _get_capacity(self, _request: web.Request) -> web.Response:
        return build_json(200, {"pools": [build_capacity_json(pool) for pool in self._list_capacity()]})

    async def _get_callers(self, _request: web.Request) -> web.Response:
        return build_json(200, build_callers_json(self._show_callers()))

    async def _post_drain(self, request: web.Request) -> web.Response:
        given = request.query.get("limit_s", str(DRAIN_LIMIT_S))
        if not (given.isascii() and given.isdigit() and len(given) <= 6):
            return build_error(400, "invalid_request", "limit_s: must be whole seconds, such as 300.")
        return self._answer_order(self._drain(ReplicaId(request.match_info["id"]), float(given)))

    async def _post_undrain(self, request: web.Request) -> web.Response:
        return self._answer_order(self._undrain(ReplicaId(request.match_info["id"])))

    def _answer_order(self, known: bool) -> web.Response:
        if not known:
            return build_error(404, "not_found", "There is no such replica.")
        return build_json(202, {"replicas": [build_replica_json(one) for one in self._list_replicas()]})


class _WithoutCreated(Collector):
    """A registry's families without the `_created` times that prometheus_client adds to each counter
    and histogram: scrapers ignore them, and they double the page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


async def _set_common_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers[hdrs.SERVER] = SERVER_NAME
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"


def _build_error_answers(observer: Observer) -> Middleware:
    """Every error as JSON, whoever raised it."""

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            answer = build_error(405, "method_not_allowed", "This path does not have that method.")
            answer.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
            return answer
        except web.HTTPNotFound:
            return build_error(404, "not_found", "There is nothing at this path; GET / lists what there is.")
        except web.HTTPException as error:
            return build_error(error.status, "invalid_request", error.reason)
        except JournalUnavailable:
            return build_error(503, "journal_unavailable", "The journal cannot be read.")
        except Exception as error:
            # A bug in one answer is reported, and the port goes on serving.
            observer.note_bug("operations port", error)
            return build_error(500, "internal_error", "The answer could not be built; the log says why.")

    return answer_errors
