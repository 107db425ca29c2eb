"""The call by which a request is handed to a person: one POST of a few facts, within a bounded time."""

import aiohttp

from envoy_ext.ports import HandedOver


class Webhook:
    """`ports.HandOffs` over HTTP. Opened with the first call."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def hand_over(self, url: str, request: HandedOver, timeout_s: float) -> bool:
        """Whether the other side has taken it: any 2xx, within the time. Never raises, and never repeats."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        body = {
            "operation_id": request.operation_id,
            "request_id": request.request_id,
            "class": request.request_class,
            "path": request.path,
            "body_sha256": request.body_sha256,
            "reason": request.code,
        }
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(url, json=body, timeout=timeout, allow_redirects=False) as answer:
                return 200 <= answer.status < 300
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()
