"""Load on a whole gateway while its replicas are killed, and the reading of what came of it.

Everything runs in processes of its own: the gateway as `envoy-ext run` starts it, the engines,
and the clients; what is left in this process watches and judges.
"""
