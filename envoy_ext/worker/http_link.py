"""One gateway's lease service over HTTP: for workers without gRPC, which is most of them."""

import aiohttp

from envoy_ext.domain.worker_lease import Renewal, WorkerLease
from envoy_ext.worker.channel import Answer


class HttpLink:
    """`GatewayLink` to a base URL. Made before there is a loop; belongs to the first that uses it."""

    def __init__(self, url: str, call_s: float) -> None:
        self._url = url
        self._call_s = call_s
        self._session: aiohttp.ClientSession | None = None

    async def renew(self, renewal: Renewal) -> Answer:
        """Ask this gateway for more time."""
        status, granted = await self._post("renew", renewal)
        if status == 200:
            return Answer.GRANTED if granted else Answer.REFUSED
        return Answer.UNKNOWN if status == 404 else Answer.NONE

    async def tell_stopped(self, lease: WorkerLease) -> bool | None:
        """Tell it that generation has stopped: whether it knows the attempt, None for no answer."""
        status, _ = await self._post("stopped", lease)
        return {200: True, 404: False}.get(status)

    async def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, call: str, named: Renewal | WorkerLease) -> tuple[int, bool]:
        """The status, 0 for none, and whether the answer says `granted`."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._call_s))
        body = {
            "attempt_id": named.attempt_id,
            "operation_id": named.operation_id,
            "token": named.token,
        }
        try:
            async with self._session.post(f"{self._url}/v1/leases/{call}", json=body) as answer:
                if answer.status != 200:
                    return answer.status, False
                told = await answer.json()
                return 200, isinstance(told, dict) and told.get("granted") is True
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return 0, False
