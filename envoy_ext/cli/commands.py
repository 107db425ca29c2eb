"""The `envoy-ext` command: parses, calls, prints. Exit 0 on success, 2 on bad usage or configuration.

Heavy imports stand inside the commands that need them: Envoy's typed messages alone take two
seconds to load, and `--help` should not.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from envoy_ext import __version__
from envoy_ext.cli.callers import callers
from envoy_ext.cli.operator import capacity, drain, operations, status, undrain
from envoy_ext.cli.options import ConfigOption, EnvoyOption, fail
from envoy_ext.domain.errors import ConfigError, EnvoyExtError, JournalUnavailable
from envoy_ext.worker.settings import GATEWAYS, EngineKind

cli = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Honest failover for self-hosted LLM replicas behind Envoy.",
)


def main() -> None:
    """Entry point. Turns the errors a person can mend into lines and an exit status."""
    try:
        cli()
    except ConfigError as error:
        fail(error.mistakes, 2)
    except EnvoyExtError as error:
        fail([str(error)], 1)
    except OSError as error:
        fail([str(error)], 1)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"envoy-ext {__version__}")
        raise typer.Exit


@cli.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@cli.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running and print the URLs.")] = False,
    envoy: EnvoyOption = None,
) -> None:
    """Three simulated engines, the sidecar and a real Envoy: plays the failures and prints what was seen."""
    from envoy_ext.drills.demo import run_demo

    sys.exit(asyncio.run(run_demo(envoy, keep)))


@cli.command()
def run(config: ConfigOption, envoy: EnvoyOption = None) -> None:
    """The sidecar and an Envoy child process; ends both cleanly on SIGTERM."""
    from envoy_ext.config import load_config

    sys.exit(_run_until_signal(_run_with_envoy(load_config(config), envoy)))


@cli.command()
def serve(config: ConfigOption) -> None:
    """The sidecar alone; Envoy is started by someone else."""
    from envoy_ext.config import load_config

    sys.exit(_run_until_signal(_serve(load_config(config))))


@cli.command()
def bootstrap(
    config: ConfigOption,
    out: Annotated[Path | None, typer.Option("-o", metavar="OUT", help="Write there, not to stdout.")] = None,
) -> None:
    """Render Envoy's bootstrap for a configuration."""
    from envoy_ext.bootstrap.render import render_bootstrap_yaml
    from envoy_ext.config import load_config

    text = render_bootstrap_yaml(load_config(config))
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)


@cli.command()
def check(config: ConfigOption, envoy: EnvoyOption = None) -> None:
    """Validate a configuration and, when an Envoy is found, its rendering."""
    from envoy_ext.adapters.envoy_process import EnvoyNotFound, find_envoy
    from envoy_ext.adapters.ops_guard import read_token_file
    from envoy_ext.config import load_config
    from envoy_ext.stack import validate_with_envoy
    from envoy_ext.wiring.callers import read_callers
    from envoy_ext.wiring.exchanges import build_queue_policy
    from envoy_ext.wiring.journal import describe_journal
    from envoy_ext.wiring.replica_keys import build_replica_keys

    loaded = load_config(config)
    build_queue_policy(loaded)  # reads the files that answers are in
    if loaded.operations.token_file is not None:
        read_token_file(loaded.operations.token_file)
    if loaded.callers is not None and loaded.callers.keys_file is not None:
        read_callers(loaded.callers.keys_file, loaded)
    build_replica_keys(loaded)  # reads their files
    print(f"{config}: the configuration is good")
    try:
        print("\n".join(asyncio.run(describe_journal(loaded.journal, with_jobs=loaded.jobs is not None))))
    except JournalUnavailable as away:
        print(f"the journal was not looked at: {away}")
    try:
        binary = find_envoy(envoy)
    except EnvoyNotFound as missing:
        print(f"the rendering was not checked: {missing}")
        return
    complaint = asyncio.run(validate_with_envoy(loaded, binary))
    if complaint is not None:
        fail([f"{config}: envoy refuses the rendering:", complaint], 2)
    print(f"{config}: envoy accepts the rendering")


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    from envoy_ext.config import config_schema

    print(json.dumps(config_schema(), indent=2))


@cli.command(name="sim-engine")
def sim_engine(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    name: Annotated[str, typer.Option(help="The replica's name, also in its text.")] = "a",
    model: Annotated[
        list[str] | None, typer.Option(help="A model name; may be repeated; sim unless given.")
    ] = None,
    prefill_s: Annotated[float, typer.Option(help="Seconds before the first token.")] = 0.05,
    token_s: Annotated[float, typer.Option(help="Seconds for each token.")] = 0.02,
    tokens: Annotated[int, typer.Option(help="Length of an answer.")] = 16,
    max_running: Annotated[int, typer.Option(help="Requests computed at once.")] = 32,
    root: Annotated[
        str, typer.Option(help="The path or hub name of its weights; its name unless given.")
    ] = "",
    first_generation: Annotated[int, typer.Option(help="Number of the first generation.")] = 1,
) -> None:
    """One simulated engine: OpenAI-compatible, vLLM-like metrics, faults on demand.

    A request asks for a fault with the header x-sim-fault, such as die_after=3 or #1:die_before_headers.
    """
    from envoy_ext.domain.errors import CannotListen
    from envoy_ext.sim.engine import run_sim_engine
    from envoy_ext.sim.options import SimOptions

    try:
        options = SimOptions(
            port=port,
            host=host,
            name=name,
            models=tuple(model or ["sim"]),
            prefill_s=prefill_s,
            token_s=token_s,
            tokens=tokens,
            max_running=max_running,
            root=root,
            first_generation=first_generation,
        )
    except ValueError as mistake:
        raise typer.BadParameter(str(mistake)) from None
    try:
        asyncio.run(run_sim_engine(options))
    except OSError as error:
        why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
        raise CannotListen(f"--port: cannot listen at {host}:{port}: {why}") from error


@cli.command()
def worker(
    engine: Annotated[
        str, typer.Option(metavar="URL", help="The engine's own port, such as http://127.0.0.1:8080.")
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the gateway reaches it in the engine's place.")
    ] = "0.0.0.0:8000",
    engine_kind: Annotated[
        EngineKind, typer.Option(help="How it is known that the engine has stopped: docs/leases.md.")
    ] = EngineKind.GENERIC,
    gateways: Annotated[
        str,
        typer.Option(
            envvar=GATEWAYS,
            metavar="URL,…",
            help="The gateways' lease service: http://host:port or grpc://host:port, with commas between.",
        ),
    ] = "",
) -> None:
    """A proxy before an engine that is no ASGI application: holds its leases, says when it has stopped."""
    from envoy_ext.worker.settings import ProxySettings

    sys.exit(_run_until_signal(_work(ProxySettings.parse(engine, engine_kind, listen, gateways))))


cli.add_typer(operations, name="operations")
cli.add_typer(callers, name="callers")
for _command in (status, capacity, drain, undrain):
    cli.command()(_command)


# --- long-running commands ----------------------------------------------------------------------


def _run_until_signal(work: Coroutine[Any, Any, int]) -> int:
    import uvloop

    from envoy_ext.observability.logs import configure_logging

    configure_logging("info")
    # What a fleet of replicas is looked at with is small requests, and half of their cost is the loop's.
    return uvloop.run(work)


async def _serve(config: Any) -> int:
    from envoy_ext.app import App, exempt_from_collection

    stop = _watch_signals()
    app = App(config)
    try:
        await app.start()
        exempt_from_collection()
        print(f"envoy-ext serves; operations at port {app.operations_port}", flush=True)
        await stop.wait()
    finally:
        await app.stop()
    return 0


async def _work(settings: Any) -> int:
    from envoy_ext.worker.proxy_server import run_proxy

    def tell(url: str) -> None:
        print(f"envoy-ext worker at {url}, as long as {settings.engine} listens", flush=True)

    await run_proxy(settings, _watch_signals(), tell)
    return 0


async def _run_with_envoy(config: Any, envoy: str | None) -> int:
    from envoy_ext.adapters.envoy_process import find_envoy
    from envoy_ext.app import exempt_from_collection
    from envoy_ext.stack import Stack

    stop = _watch_signals()
    async with Stack(config, find_envoy(envoy)) as stack:
        exempt_from_collection()
        tools = f"  tools: {stack.tools_url}" if stack.tools_url else ""
        print(f"clients: {stack.ingress_url}  operations: {stack.operations_url}{tools}", flush=True)
        stopped = asyncio.ensure_future(stop.wait())
        ended = asyncio.ensure_future(stack.envoy.wait())
        await asyncio.wait((stopped, ended), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if ended.done():
            print(f"envoy ended by itself with status {ended.result()}", file=sys.stderr)
            return 1
        ended.cancel()
    return 0


def _watch_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
