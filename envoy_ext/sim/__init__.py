"""A simulated engine: an OpenAI-compatible server with a real engine's metrics and faults on demand.

`options` says how one engine behaves, `faults` what can go wrong on demand, `shapes` and the
`shape_*` files what each API's answer looks like, `script` turns all that into the steps of one
answer (no IO up to here), `player` performs the steps on a connection, `engine` is the server.
"""
