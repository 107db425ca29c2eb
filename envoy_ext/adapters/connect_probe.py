"""Whether a process is there, by one TCP connection: refused is dead, silence is nothing at all."""

import asyncio
from contextlib import suppress
from typing import Final

from envoy_ext.ports import Reach

CONNECT_S: Final = 1.0
"""A refusal comes in one round trip. What takes longer than this is no word of the host's."""
AGAIN_S: Final = 0.01
"""A kernel takes about a millisecond to end a process, or ten where it had much memory."""


class ConnectProbe:
    """`ports.ReachProbe` over TCP. Looks at one address that come together are one."""

    def __init__(self) -> None:
        self._looks: dict[str, asyncio.Task[Reach]] = {}

    async def look(self, address: str) -> Reach:
        """Try a connection to an `ip:port`."""
        looking = self._looks.get(address)
        if looking is None:
            looking = asyncio.get_running_loop().create_task(_connect(address))
            self._looks[address] = looking
            looking.add_done_callback(lambda _: self._looks.pop(address, None))
        return await asyncio.shield(looking)


async def _connect(address: str) -> Reach:
    host, _, port = address.rpartition(":")
    reset = False
    try:
        async with asyncio.timeout(CONNECT_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                    break
                except ConnectionResetError:
                    # The host had answered, and whoever listened went away: a process that is killed closes
                    # the connections that wait for it with its port. What stands there, another look tells.
                    reset = True
                    await asyncio.sleep(AGAIN_S)
    except ConnectionRefusedError:
        return Reach.REFUSED
    except TimeoutError:
        return Reach.ACCEPTED if reset else Reach.SILENT
    except OSError:
        return Reach.SILENT
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return Reach.ACCEPTED
