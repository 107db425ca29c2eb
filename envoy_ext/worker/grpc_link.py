"""One gateway's lease service over gRPC (`protos/leases.proto`).

Needs grpcio and protobuf, so it is imported only when it is asked for.
"""

import asyncio
from typing import Any, Final

import grpc

from envoy_ext._pb import leases_pb2 as pb
from envoy_ext.domain.worker_lease import Renewal, WorkerLease
from envoy_ext.worker.channel import Answer

RECONNECT_MS: Final = 200
"""From one try to reach a gateway to the next. gRPC's own wait grows to two minutes, in which every call to a
gateway that is long back fails."""
_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Leases"].full_name


class GrpcLink:
    """`GatewayLink` to a `host:port`. Made before there is a loop; belongs to the first that uses it."""

    def __init__(self, target: str, call_s: float) -> None:
        self._target = target
        self._call_s = call_s
        self._channel: Any = None
        self._closing: set[asyncio.Task[None]] = set()

    async def renew(self, renewal: Renewal) -> Answer:
        """Ask this gateway for more time."""
        code, answer = await self._call("Renew", pb.RenewRequest, pb.RenewResponse, renewal)
        if code is grpc.StatusCode.OK:
            return Answer.GRANTED if answer.granted else Answer.REFUSED
        return Answer.UNKNOWN if code is grpc.StatusCode.NOT_FOUND else Answer.NONE

    async def tell_stopped(self, lease: WorkerLease) -> bool | None:
        """Tell it that generation has stopped: whether it knows the attempt, None for no answer."""
        code, _ = await self._call("Stopped", pb.StoppedRequest, pb.StoppedResponse, lease)
        return {grpc.StatusCode.OK: True, grpc.StatusCode.NOT_FOUND: False}.get(code)

    async def close(self) -> None:
        """Let go of the connection."""
        if self._channel is not None:
            await self._channel.close()
        await asyncio.gather(*self._closing)

    async def _call(
        self, name: str, request: Any, response: Any, named: Renewal | WorkerLease
    ) -> tuple[Any, Any]:
        """The status, and the answer where it is OK."""
        if self._channel is None:
            self._channel = self._open()
        channel = self._channel
        call = channel.unary_unary(
            f"/{_SERVICE}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        body = request(attempt_id=named.attempt_id, operation_id=named.operation_id, token=named.token)
        try:
            return grpc.StatusCode.OK, await call(body, timeout=self._call_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._channel is channel:
                self._channel = None
                self._let_go(channel)
            return error.code(), None

    def _let_go(self, channel: Any) -> None:
        """Leave a connection that does not answer: the way may be cut, and TCP would try it for minutes. The
        next call makes a new one; calls under way on this one keep their time."""
        task = asyncio.get_running_loop().create_task(channel.close(grace=self._call_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _open(self) -> Any:
        options = [
            ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
            ("grpc.min_reconnect_backoff_ms", round(self._call_s * 1000)),  # what one try may take
            # Its own connections: a channel that replaces another one must not be given that one's.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ]
        return grpc.aio.insecure_channel(self._target, options=options)
