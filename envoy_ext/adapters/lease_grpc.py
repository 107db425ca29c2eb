"""The lease service over gRPC (`protos/leases.proto`), on a port of its own: replicas are on other hosts, and
what Envoy speaks to the sidecar is not for them."""

from typing import Any, Final

import grpc

from envoy_ext._pb import leases_pb2 as pb
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId
from envoy_ext.services.leases import LeaseAnswer, Leases

MAX_MESSAGE_BYTES: Final = 4096
_STOP_S: Final = 1.0


class LeaseGrpcServer:
    """Owns the listening socket. `start` once, `stop` once."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
        )
        handlers = {
            "Renew": grpc.unary_unary_rpc_method_handler(
                self._renew, pb.RenewRequest.FromString, pb.RenewResponse.SerializeToString
            ),
            "Stopped": grpc.unary_unary_rpc_method_handler(
                self._note_stopped, pb.StoppedRequest.FromString, pb.StoppedResponse.SerializeToString
            ),
        }
        service = pb.DESCRIPTOR.services_by_name["Leases"].full_name
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async def start(self, address: str, port: int) -> int:
        """Listen; the port, which 0 leaves to the kernel.

        Raises:
            OSError: the address cannot be listened at.
        """
        host = f"[{address}]" if ":" in address else address
        try:
            bound = int(self._server.add_insecure_port(f"{host}:{port}"))
        except RuntimeError as error:
            raise OSError(f"cannot listen at {host}:{port}: {error}") from None
        await self._server.start()
        return bound

    async def stop(self) -> None:
        """Close the port."""
        await self._server.stop(_STOP_S)

    async def _renew(self, request: Any, context: Any) -> Any:
        answer = self._leases.renew(*_read_question(request))
        if answer is LeaseAnswer.UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such attempt here")
        if answer is LeaseAnswer.NOT_NOW:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this gateway grants nothing at the moment")
        return pb.RenewResponse(granted=answer is LeaseAnswer.GRANTED)

    async def _note_stopped(self, request: Any, context: Any) -> Any:
        if not self._leases.note_stopped(*_read_question(request)):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such attempt here")
        return pb.StoppedResponse()


def _read_question(request: Any) -> tuple[OperationId, AttemptId, FencingToken]:
    return OperationId(request.operation_id), AttemptId(request.attempt_id), FencingToken(request.token)
