"""`ports.DiscoverySource` for a Service of Kubernetes: its EndpointSlices, by list and watch.

One list, then one watch after the other from where the last one ended; the list again only when the
API says that this lies too far back. What the API says is read in `domain.slice_watch`.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

import aiohttp

from envoy_ext.adapters.discovery_kubernetes_api import (
    MAX_BYTES,
    ApiFailed,
    KubernetesApi,
    ServicePlace,
    TooOld,
    read_body,
)
from envoy_ext.domain.discovery import Listing, ListingFailed, Told
from envoy_ext.domain.slice_watch import (
    GONE,
    ApiStatus,
    BadAnswer,
    SliceCache,
    SlicePage,
    parse_event,
    parse_page,
)

PAGE_SLICES: Final = 500
"""As kubectl and client-go ask for. A slice has a hundred endpoints, so one page is the rule."""


@dataclass(frozen=True, slots=True)
class KubernetesTiming:
    """Seconds."""

    list_s: float = 30.0
    """Until a whole page of a list has come."""
    watch_s: float = 300.0
    """How long the API is asked to keep a watch: the lower end of client-go's 5 to 10 minutes, since a
    change that a broken way swallowed shows with the next watch at the latest."""
    silence_s: float = 15.0
    """What a watch may take beyond its time before it counts as broken."""
    retry_first_s: float = 0.5
    retry_most_s: float = 30.0
    """Between attempts the wait doubles up to this, as client-go's does. Half of it is drawn by lot, so
    that many sidecars do not come back at once."""
    settled_s: float = 10.0
    """A watch that lasted so long begins the waits anew."""


class KubernetesSource:
    """Follows one Service. While the API cannot be asked, what was told last stands."""

    def __init__(
        self,
        place: ServicePlace,
        timing: KubernetesTiming | None = None,
        build_api: Callable[[ServicePlace], KubernetesApi] = KubernetesApi,
    ) -> None:
        self._place = place
        self._timing = timing or KubernetesTiming()
        self._build_api = build_api

    async def follow(self) -> AsyncGenerator[Told, None]:
        """The list after each change, and what keeps one from coming."""
        pace = _Pace(self._timing)
        cache: SliceCache | None = None
        async with contextlib.aclosing(self._build_api(self._place)) as api:
            while True:
                pace.begin()
                wait_s = 0.0
                try:
                    if cache is None:
                        cache = await self._list(api)
                        yield self._build_listing(cache)
                    async with contextlib.aclosing(self._watch(api, cache)) as watching:
                        async for told in watching:
                            yield told
                except TooOld:
                    cache = None
                except ApiFailed as failed:
                    cache = None if failed.stale else cache
                    wait_s = failed.wait_s
                    yield failed.told
                await asyncio.sleep(max(pace.next_s(), wait_s))

    async def _list(self, api: KubernetesApi) -> SliceCache:
        """All slices at one version, page by page."""
        pages: list[SlicePage] = []
        while not pages or pages[-1].following:
            params = {"limit": str(PAGE_SLICES)}
            if pages:
                params["continue"] = pages[-1].following
            async with api.ask("list", params, self._timing.list_s) as answer:
                body = await read_body(answer, self._timing.list_s)
            try:
                pages.append(parse_page(body))
            except BadAnswer as error:
                raise ApiFailed("bad_answer", f"the API's list: {error}") from error
        return SliceCache(tuple(one for page in pages for one in page.slices), pages[-1].version)

    async def _watch(self, api: KubernetesApi, cache: SliceCache) -> AsyncGenerator[Told, None]:
        """Each change from the cache's version on, until the watch ends, in whatever way.

        That one was cut says nothing yet: the next goes on where this one ended.
        """
        lasts_s = self._timing.watch_s * random.uniform(0.8, 1.0)
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": cache.version,
            "timeoutSeconds": str(max(1, round(lasts_s))),
        }
        async with api.ask("watch", params, lasts_s + self._timing.silence_s) as answer:
            yield self._build_listing(cache)  # whatever failed before is over
            rest = bytearray()
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async for chunk in answer.content.iter_any():
                    rest += chunk
                    changed, failure = _apply_lines(cache, rest)
                    if changed:
                        yield self._build_listing(cache)
                    if failure is not None:
                        raise failure

    def _build_listing(self, cache: SliceCache) -> Listing | ListingFailed:
        return cache.build_listing(self._place.port)


def _apply_lines(cache: SliceCache, rest: bytearray) -> tuple[bool, Exception | None]:
    """Take in the whole lines and leave what follows them. What has no end when the stream has is lost,
    and comes again with the next watch."""
    *lines, last = rest.split(b"\n")
    rest[:] = last
    changed = False
    for line in lines:
        try:
            event = parse_event(bytes(line)) if line.strip() else None
        except BadAnswer as error:
            return changed, ApiFailed("bad_answer", f"the API's watch: {error}", stale=True)
        if isinstance(event, ApiStatus):
            return changed, _read_end(event)
        changed = (event is not None and cache.apply(event)) or changed
    if len(rest) > MAX_BYTES:
        return changed, ApiFailed("bad_answer", "the API's watch: a line without an end", stale=True)
    return changed, None


def _read_end(status: ApiStatus) -> Exception:
    if status.code == GONE:
        return TooOld()
    said = status.message or status.reason or str(status.code)
    return ApiFailed("api_error", f"the API ended its watch: {said}", stale=True)


class _Pace:
    """How long to wait before the API is asked again."""

    def __init__(self, timing: KubernetesTiming) -> None:
        self._timing = timing
        self._wait_s = timing.retry_first_s
        self._began_at = 0.0

    def begin(self) -> None:
        """The API is asked now."""
        self._began_at = asyncio.get_running_loop().time()

    def next_s(self) -> float:
        """That is over, well or not."""
        timing = self._timing
        if asyncio.get_running_loop().time() - self._began_at >= timing.settled_s:
            self._wait_s = timing.retry_first_s
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, timing.retry_most_s)
        return wait_s * random.uniform(0.5, 1.0)
