"""What stays for good is no work for the garbage collector, whose full rounds hold every stream up."""

import asyncio
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import asyncio, gc, os, signal, sys, weakref
from envoy_ext.cli import commands
from envoy_ext.config import load_config

class Later:
    pass

async def look():
    while not gc.get_freeze_count():
        await asyncio.sleep(0.01)
    later = Later()
    later.itself = later
    known = weakref.ref(later)
    del later
    gc.collect()
    print(gc.get_freeze_count(), len(gc.get_objects()), known() is None, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

async def main():
    looking = asyncio.create_task(look())
    await commands._serve(load_config(sys.argv[1]))
    await looking

asyncio.run(main())
"""


CONFIG = """
pools: [{{name: chat, models: [m], replicas: [{{url: "http://127.0.0.1:1"}}]}}]
operations: {{port: 0}}
sidecar: {{socket: {directory}/s.sock}}
journal: {{store: memory}}
"""


async def test_a_running_sidecar_collects_what_came_after_its_start_and_nothing_else() -> None:
    with tempfile.TemporaryDirectory() as directory:  # a socket's path must be short
        config = Path(directory, "config.yaml")
        config.write_text(CONFIG.format(directory=directory))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SCRIPT, str(config)), stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(30):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    *_, frozen, left, collected = output.decode().split()
    assert int(frozen) > 10 * int(left)
    assert collected == "True"
