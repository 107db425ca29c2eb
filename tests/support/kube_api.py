"""A Kubernetes API server, as far as EndpointSlices go, on real HTTP.

It speaks list and watch as https://kubernetes.io/docs/reference/using-api/api-concepts/ has them:
versions that only grow, pages with a `continue` token, one JSON object a line, bookmarks, an end after
`timeoutSeconds`, and 410 for what lies too far back: as a status for a page, inside the stream for a
watch. What it is asked that a real one would not understand makes the test fail.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
SERVICE_LABEL = "kubernetes.io/service-name"
TOKEN = "token-1"


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    """A `Status` object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def forbidden(verb: str) -> dict[str, Any]:
    """What RBAC says."""
    message = (
        'endpointslices.discovery.k8s.io is forbidden: User "system:serviceaccount:ml:default" cannot '
        f'{verb} resource "endpointslices" in API group "discovery.k8s.io" in the namespace "ml"'
    )
    return status(403, "Forbidden", message)


def too_old(version: int, current: int) -> dict[str, Any]:
    return status(410, "Expired", f"too old resource version: {version} ({current})")


@dataclass
class Asked:
    """One request it got."""

    verb: str
    query: dict[str, str]
    token: str
    at: float


@dataclass
class KubeApi:
    """The server; `run` it. What is put into it goes to every watch at once."""

    token: str | None = TOKEN
    """The one it takes; None: anybody may ask."""
    page: int = 1000
    asked: list[Asked] = field(default_factory=list)
    refusals: list[tuple[str, web.Response]] = field(default_factory=list)
    """Answers given instead of the true one, in turn: for `list` or `watch`."""
    hanging: bool = False
    """It takes requests and says nothing."""
    deaf: bool = False
    """It begins watches, and then sends neither a change nor an end: as over a way that is cut."""
    watches: list["Watch"] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._version = 100
        self._oldest = 0
        self._slices: dict[str, dict[str, Any]] = {}
        self._history: list[tuple[int, str, dict[str, Any]]] = []
        self._pages: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self.changed = asyncio.Event()

    # --- what happens in the cluster --------------------------------------------------------------

    def put(self, *slices: dict[str, Any]) -> None:
        """A controller writes these slices."""
        for one in slices:
            name = one["metadata"]["name"]
            kind = "MODIFIED" if name in self._slices else "ADDED"
            self._slices[name] = self._write(kind, one)

    def delete(self, name: str) -> None:
        self._write("DELETED", self._slices.pop(name))

    def list_ready(self) -> list[str]:
        """The names of all pods that are ready."""
        endpoints = [one for each in self._slices.values() for one in each["endpoints"]]
        return [one["targetRef"]["name"] for one in endpoints if one["conditions"].get("ready", True)]

    def pass_unseen(self, versions: int = 1000) -> None:
        """Changes of other objects: versions go on, and the history is compacted."""
        self._version += versions
        self._oldest = self._version
        self._history.clear()
        self._pages.clear()

    def bookmark(self) -> None:
        """Tell every watch that asked for it how far it is."""
        self._version += 1
        marked = {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"resourceVersion": str(self._version), "creationTimestamp": None},
            "endpoints": None,
            "ports": None,
        }
        for watch in self.watches:
            if watch.bookmarks:
                watch.send({"type": "BOOKMARK", "object": marked})

    def _write(self, kind: str, one: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        written = {**one, "metadata": {**one["metadata"], "resourceVersion": str(self._version)}}
        self._history.append((self._version, kind, written))
        for watch in self.watches:
            if watch.matches(written):
                watch.send({"type": kind, "object": written})
        return written

    # --- how it fails -----------------------------------------------------------------------------

    def refuse(self, verb: str, said: dict[str, Any] | str, code: int = 0, **headers: str) -> None:
        """Answer the next question of this kind with this."""
        body = said if isinstance(said, str) else json.dumps(said)
        code = code or (said.get("code", 200) if isinstance(said, dict) else 200)
        kind = "text/html" if isinstance(said, str) and said.startswith("<") else "application/json"
        answer = web.Response(status=code, body=body.encode(), content_type=kind, headers=headers)
        self.refusals.append((verb, answer))

    def count(self, verb: str) -> int:
        return sum(one.verb == verb for one in self.asked)

    async def wait_until(self, holds: Callable[[], bool], within_s: float = 10.0) -> None:
        """Until something that a request brings about holds."""
        async with asyncio.timeout(within_s):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def wait_watched(self) -> "Watch":
        """Until somebody watches; the latest watch."""
        await self.wait_until(lambda: bool(self.watches))
        return self.watches[-1]

    # --- HTTP -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def run(self, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator["KubeApi"]:
        """Listen on loopback."""
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        scheme, port = "https" if tls else "http", runner.addresses[0][1]
        self.url = f"{scheme}://127.0.0.1:{port}"
        try:
            yield self
        finally:
            for watch in list(self.watches):
                watch.end()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        verb = "watch" if query.get("watch") in ("1", "true") else "list"
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.asked.append(Asked(verb, query, token, asyncio.get_running_loop().time()))
        self.changed.set()
        if self.hanging:
            await asyncio.Event().wait()
        if self.token is not None and token != self.token:
            return web.json_response(status(401, "Unauthorized", "Unauthorized"), status=401)
        for number, (kind, answer) in enumerate(self.refusals):
            if kind == verb:
                del self.refusals[number]
                return answer
        service = query["labelSelector"].removeprefix(f"{SERVICE_LABEL}=")
        if verb == "watch":
            return await self._watch(request, service)
        return self._list(service, query)

    def _list(self, service: str, query: dict[str, str]) -> web.Response:
        version, rest = self._version, list(self._slices.values())
        if "continue" in query:
            if query["continue"] not in self._pages:
                message = "The provided continue parameter is too old to display a consistent list result."
                return web.json_response(status(410, "Expired", message), status=410)
            version, rest = self._pages[query["continue"]]
        rest = [one for one in rest if one["metadata"]["labels"][SERVICE_LABEL] == service]
        size = min(self.page, int(query.get("limit", self.page)))
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if rest[size:]:
            meta |= {"continue": f"at-{version}-{len(rest)}", "remainingItemCount": len(rest[size:])}
            self._pages[meta["continue"]] = version, rest[size:]
        items = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": meta}
        return web.json_response({**items, "items": rest[:size]})

    async def _watch(self, request: web.Request, service: str) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        watch = Watch(service, request.query.get("allowWatchBookmarks") == "true")
        if version < self._oldest:
            watch.send({"type": "ERROR", "object": too_old(version, self._version)})
            watch.end()
        else:
            self._replay(watch, version)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        self.watches.append(watch)
        self.changed.set()
        try:
            if self.deaf:
                await asyncio.Event().wait()
            await watch.serve(request, answer, float(request.query["timeoutSeconds"]))
        finally:
            self.watches.remove(watch)
            self.changed.set()
        return answer

    def _replay(self, watch: "Watch", version: int) -> None:
        for at, kind, one in self._history:
            if at > version and watch.matches(one):
                watch.send({"type": kind, "object": one})


class Watch:
    """One client's watch."""

    def __init__(self, service: str, bookmarks: bool) -> None:
        self.bookmarks = bookmarks
        self._service = service
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._cut = False

    def matches(self, one: dict[str, Any]) -> bool:
        return bool(one["metadata"]["labels"][SERVICE_LABEL] == self._service)

    def send(self, event: dict[str, Any]) -> None:
        """One event."""
        self.send_bytes(json.dumps(event).encode() + b"\n")

    def send_bytes(self, *pieces: bytes) -> None:
        """Bytes as they are, each piece on its own."""
        for piece in pieces:
            self._queue.put_nowait(piece)

    def end(self) -> None:
        """As after its time."""
        self._queue.put_nowait(None)

    def cut(self, *last: bytes) -> None:
        """These bytes, and then the connection is gone."""
        self._cut = True
        self.send_bytes(*last)
        self.end()

    async def serve(self, request: web.Request, answer: web.StreamResponse, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while (piece := await self._queue.get()) is not None:
                    await answer.write(piece)
                    await asyncio.sleep(0)
        except TimeoutError:
            pass
        if self._cut and request.transport is not None:
            request.transport.abort()


def names_of(members: Iterable[Any]) -> list[str]:
    """The ids of what a source told."""
    return [str(one.replica) for one in members]
