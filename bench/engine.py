"""The cheapest engine that can be: canned SSE chunks over raw asyncio, so that it is not what is measured.

Each content chunk carries the monotonic time at which it was written. Every process on the machine
shares that clock, so a client can tell how long the chunk was under way.

    python bench/engine.py PORT     (0 takes a free one; prints `ready PORT`)

The request's headers steer it: `x-bench-chunks` how many, `x-bench-gap-ms` how long between two and behind
the last, `x-bench-prefill-ms` how long before the answer begins.
"""

import asyncio
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b'data: {"id":"b","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def build_chunk() -> bytes:
    """One content event of the size that vLLM sends for a token."""
    event = (
        b'data: {"id":"chatcmpl-00000000000000000000000000000001","object":"chat.completion.chunk",'
        b'"created":1772423572,"model":"bench","choices":[{"index":0,"delta":{"content":"%d "},'
        b'"logprobs":null,"finish_reason":null}]}\n\n' % time.monotonic_ns()
    )
    return frame(event)


def frame(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One keep-alive connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            await reader.readexactly(int(fields.get(b"content-length", b"0")))
            chunks = int(fields.get(b"x-bench-chunks", b"32"))
            gap_s = float(fields.get(b"x-bench-gap-ms", b"0")) / 1000
            prefill_s = float(fields.get(b"x-bench-prefill-ms", b"0")) / 1000
            if prefill_s:
                await asyncio.sleep(prefill_s)
            writer.write(HEAD)
            due = time.monotonic()
            for _ in range(chunks):
                writer.write(build_chunk())
                if gap_s:
                    due += gap_s
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                else:
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.write(frame(LAST) + frame(DONE) + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
