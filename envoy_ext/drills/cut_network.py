"""A network that can be cut: a namespace of its own and links to it.

A cut is silent, as a pulled cable is: nobody is told, and packets go nowhere. Needs root and `ip`.
"""

import asyncio
import os
import secrets
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """One link and what is at its far end."""

    namespace: str
    interface: str
    far_interface: str
    address: str
    """Of the far end."""
    near_address: str

    @property
    def within(self) -> tuple[str, ...]:
        """The command that runs another one at the far end."""
        return ("ip", "netns", "exec", self.namespace)

    async def cut(self) -> None:
        """At the far end: this side's routes stay, and nothing comes back."""
        await run("ip", "-n", self.namespace, "link", "set", self.far_interface, "down")

    async def heal(self) -> None:
        """Until packets pass again: this side's kernel takes a while to see that the link is up."""
        await run("ip", "-n", self.namespace, "link", "set", self.far_interface, "up")
        async with asyncio.timeout(10):
            while not await self._passes():
                await asyncio.sleep(0.02)

    async def _passes(self) -> bool:
        """Whether the far end refuses: nobody listens at this port."""
        try:
            async with asyncio.timeout(0.2):
                await asyncio.open_connection(self.address, 1)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            pass
        return False


async def run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, error = await process.communicate()
    if process.returncode != 0:
        raise OSError(f"{' '.join(command)}: {error.decode().strip()}")


async def find_obstacle() -> str | None:
    """Why no such network can be made here, None when it can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and ip"
    try:
        async with make_link():
            return None
    except OSError as error:
        return f"network namespaces cannot be made here: {error}"


@asynccontextmanager
async def make_link() -> AsyncIterator[Link]:
    async with make_links(1) as (link,):
        yield link


@asynccontextmanager
async def make_links(count: int) -> AsyncIterator[list[Link]]:
    """Several links to one namespace, each cut by itself."""
    taken = {name for _, name in socket.if_nameindex()}
    while True:
        first = secrets.randbelow(1 << 14)
        namespace = f"envoyext{os.getpid()}x{first}"
        links = [_plan_link(namespace, number, (first + number) % (1 << 14)) for number in range(count)]
        if taken.isdisjoint(link.interface for link in links):
            break
    await run("ip", "netns", "add", namespace)
    try:
        await run("ip", "-n", namespace, "link", "set", "lo", "up")
        for link in links:
            far = ("-n", namespace)
            peer = ("peer", "name", link.far_interface, "netns", namespace)
            await run("ip", "link", "add", link.interface, "type", "veth", *peer)
            await run("ip", "addr", "add", f"{link.near_address}/30", "dev", link.interface)
            await run("ip", *far, "addr", "add", f"{link.address}/30", "dev", link.far_interface)
            await run("ip", "link", "set", link.interface, "up")
            await run("ip", *far, "link", "set", link.far_interface, "up")
        yield links
    finally:
        await run("ip", "netns", "del", namespace)  # its ends of the links go with it


def _plan_link(namespace: str, number: int, subnet: int) -> Link:
    """In a /30 of its own, by chance: other runs make links on the same machine."""
    net, host = f"10.213.{subnet >> 6}", (subnet & 63) * 4
    return Link(namespace, f"ee{subnet}", f"far{number}", f"{net}.{host + 2}", f"{net}.{host + 1}")
