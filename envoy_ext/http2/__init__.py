"""A server's HTTP/2 and gRPC, without IO: bytes and the time in, calls and bytes out.

Written for the streams that an Envoy opens to its sidecar. `connection` is HTTP/2 (RFC 9113), `grpc_calls`
gRPC on top of it; header blocks are unpacked by the `hpack` library. Nothing here knows what a call says.
"""
