"""The journal as another process sees it: the operations port, asked over HTTP.

Belongs to the command line; the sidecar itself never calls it.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp

from envoy_ext.domain.errors import EnvoyExtError

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)
"""A port nearby accepts in milliseconds; one that drops packets must not hold a terminal for minutes."""


CAPACITY_KEYS: Final = frozenset({"pool", "replicas", "unable", "room", "busiest", "n_plus_one"})
"""What the command line reckons with."""


EXPORT_PAGE: Final = 200
"""Operations in one answer: some 200 kB, and 5 ms of the loop that the sidecar's streams run on."""
_IS_IT_ONE: Final = "is it a sidecar's operations port?"


class OperationsUnavailable(EnvoyExtError):
    """The operations port could not be asked, or does not know the operation."""


async def fetch_operation(url: str, operation_id: str) -> dict[str, Any]:
    """One operation's JSON."""
    place = f"{url.rstrip('/')}/v1/operations/{quote(operation_id, safe='')}"
    missing = f"{operation_id}: no such operation at {url}; `envoy-ext operations list` names the newest"
    found: dict[str, Any] = await _fetch(place, missing=missing)
    return found


async def fetch_operations(url: str, limit: int) -> list[dict[str, Any]]:
    """The newest operations' JSON."""
    return await _fetch_list(url, f"operations?limit={limit}", "operations")


async def fetch_jobs(url: str, limit: int, state: str | None) -> list[dict[str, Any]]:
    """The JSON of jobs, the oldest first: of those that have not ended, or in these states."""
    query = {"limit": str(limit)} | ({} if state is None else {"state": state})
    return await _fetch_list(url, f"jobs?{urlencode(query)}", "jobs")


async def stream_operations(
    url: str, since: float, state: str | None
) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON of every operation that began since then, oldest first; asked for page by page."""
    moment = datetime.fromtimestamp(since, UTC).isoformat().replace("+00:00", "Z")
    query = {"since": moment, "limit": str(EXPORT_PAGE)} | ({} if state is None else {"state": state})
    place: str | None = None
    while True:
        path = f"operations?{urlencode(query | ({} if place is None else {'after': place}))}"
        page = await _fetch_page(url, path, "operations")
        for operation in page["operations"]:
            yield operation
        place = page.get("next")
        if place is None:
            return


async def fetch_replicas(url: str) -> list[dict[str, Any]]:
    """Every replica's JSON."""
    return await _fetch_list(url, "replicas", "replicas")


async def fetch_capacity(url: str) -> list[dict[str, Any]]:
    """Every pool's capacity."""
    missing = f"{url}: has no /v1/capacity: is it the operations port of a sidecar of this release?"
    found = await _fetch_list(url, "capacity", "pools", missing)
    if not all(isinstance(pool, dict) and pool.keys() >= CAPACITY_KEYS for pool in found):
        raise OperationsUnavailable(f"{url}: tells its capacity in another form: is it of another release?")
    return found


async def fetch_status(url: str) -> dict[str, Any]:
    """Pools, replicas and capacity, each as its own path answers."""
    pools, replicas, capacity = await asyncio.gather(
        _fetch_list(url, "pools", "pools"), fetch_replicas(url), fetch_capacity(url)
    )
    return {"pools": pools, "replicas": replicas, "capacity": capacity}


async def order_drain(url: str, replica: str, limit_s: int, token: str | None) -> None:
    """Take a replica out of new work."""
    order = f"{url.rstrip('/')}/v1/replicas/{quote(replica, safe='')}/drain?limit_s={limit_s}"
    await _fetch(order, "POST", token, _say_no_replica(replica, url))


async def order_undrain(url: str, replica: str, token: str | None) -> None:
    """Take the order back."""
    order = f"{url.rstrip('/')}/v1/replicas/{quote(replica, safe='')}/undrain"
    await _fetch(order, "POST", token, _say_no_replica(replica, url))


def _say_no_replica(replica: str, url: str) -> str:
    return f"{replica}: no such replica at {url}; `envoy-ext status` names them"


async def wait_drained(url: str, replica: str, limit_s: float) -> int:
    """Until a replica that was taken out has no streams of ours, or the limit has passed; how many are left.

    Raises:
        OperationsUnavailable: the sidecar cannot be asked, or the order stands no more.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + limit_s
    while True:
        left = await _count_streams(url, replica)
        if left == 0 or clock() >= until:
            return left
        await asyncio.sleep(min(0.5, max(0.0, until - clock())))


async def _count_streams(url: str, replica: str) -> int:
    """Of one that is out by an order; who is not listed any more has none."""
    found = next((one for one in await fetch_replicas(url) if one["id"] == replica), None)
    if found is None:
        return 0
    if found["state"] != "gone" and "draining" not in found["reasons"]:
        raise OperationsUnavailable(
            f"{replica}: gets work again: the order was taken back, or another sidecar runs at {url} now"
        )
    return int(found["inflight"] or 0)


async def _fetch_list(url: str, path: str, key: str, missing: str | None = None) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await _fetch_page(url, path, key, missing))[key]
    return listed


async def _fetch_page(url: str, path: str, key: str, missing: str | None = None) -> dict[str, Any]:
    """An answer that has a list under this key."""
    place = f"{url.rstrip('/')}/v1/{path}"
    found = await _fetch(place, missing=missing or f"{place}: is not there: {_IS_IT_ONE}")
    if not isinstance(found, dict) or not isinstance(found.get(key), list):
        raise OperationsUnavailable(f"{place}: answered something else: {_IS_IT_ONE}")
    return found


async def _fetch(url: str, method: str = "GET", token: str | None = None, missing: str = "") -> Any:
    if not url.startswith(("http://", "https://")):
        raise OperationsUnavailable(f"{url}: is no URL; write one such as http://127.0.0.1:9902")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as http,
            http.request(method, url) as answer,
        ):
            if answer.status == 404:
                raise OperationsUnavailable(missing)
            if answer.status not in (200, 202):
                raise OperationsUnavailable(f"{url}: answered {answer.status}{await _read_why(answer)}")
            return await answer.json()
    except TimeoutError as error:
        raise OperationsUnavailable(f"{url}: cannot be asked: no answer in time") from error
    except aiohttp.ClientConnectorError as error:
        cause = error.os_error
        # asyncio's own text repeats the address; a name that is not found has no errno of the system's.
        why = os.strerror(cause.errno) if cause.errno is not None and cause.errno > 0 else str(cause.strerror)
        raise OperationsUnavailable(f"{url}: cannot be asked: {why}; does a sidecar run there?") from error
    except (aiohttp.ClientError, ValueError) as error:
        raise OperationsUnavailable(f"{url}: cannot be asked: {error}") from error


async def _read_why(answer: aiohttp.ClientResponse) -> str:
    """The sidecar's own words about a refusal; nothing where it has none."""
    try:
        return f": {(await answer.json())['error']['message']}"
    except (aiohttp.ClientError, ValueError, TypeError, KeyError):
        return ""
