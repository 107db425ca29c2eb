"""The commands for operators: they ask a running sidecar, and change nothing but what serves."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from envoy_ext.cli.options import DEFAULT_URL, ConfigOption, JsonOption, TokenFileOption, UrlOption, fail
from envoy_ext.domain.outcomes import OperationState

_WHEN = "How long ago, such as 15m, 24h or 7d, or a moment, such as 2026-11-30T18:00:00Z."
ReplicaArgument = Annotated[str, typer.Argument(help="Its id, as `status` shows it.")]

operations = typer.Typer(no_args_is_help=True, help="Read the journal of operations.")


@operations.command("show")
def operations_show(
    operation_id: Annotated[str, typer.Argument(help="Its id, as in x-operation-id and `operations list`.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """One operation: its attempts, its end, and why."""
    from rich.console import Console

    from envoy_ext.cli.columns import print_text
    from envoy_ext.cli.tables import build_operation_text
    from envoy_ext.operations_client import fetch_operation

    found = asyncio.run(fetch_operation(url, operation_id))
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_text(Console(), build_operation_text(found))


@operations.command("list")
def operations_list(
    url: UrlOption = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    jobs: Annotated[bool, typer.Option("--jobs", help="The jobs that have not ended, oldest first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The newest operations; or, with --jobs, what waits to be run and what runs of it."""
    from rich.console import Console

    from envoy_ext.cli.columns import print_text
    from envoy_ext.cli.tables import build_jobs_text, build_operations_text
    from envoy_ext.operations_client import fetch_jobs, fetch_operations

    found = asyncio.run(fetch_jobs(url, limit, None) if jobs else fetch_operations(url, limit))
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_text(Console(), build_jobs_text(found) if jobs else build_operations_text(found))


@operations.command("export")
def operations_export(
    since: Annotated[str, typer.Option(metavar="WHEN", help=_WHEN)],
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Before then.")] = None,
    state: Annotated[OperationState | None, typer.Option(help="Only those in this state.")] = None,
    url: Annotated[
        str | None, typer.Option("--url", help=f"A sidecar's operations port; {DEFAULT_URL} unless given.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Read a SQLite journal's file itself, without a sidecar."),
    ] = None,
) -> None:
    """Every operation that began since then, oldest first: one JSON object a line.

    Each is what `operations show --json` prints. Prompts, answers and what tools were told are not in it.
    """
    from envoy_ext.cli.export import read_file, write_lines
    from envoy_ext.operations_client import stream_operations

    now = time.time()
    begin = _read_when("--since", since, now)
    end = None if until is None else _read_when("--until", until, now)
    word = None if state is None else state.value
    if file is not None and url is not None:
        raise typer.BadParameter("--url and --file: give one of the two")
    found = read_file(file, begin, word) if file else stream_operations(url or DEFAULT_URL, begin, word)
    asyncio.run(write_lines(found, end))


def _read_when(option: str, text: str, now: float) -> float:
    from envoy_ext.adapters.moment_codec import parse_when

    try:
        return parse_when(text, now)
    except ValueError as mistake:
        raise typer.BadParameter(f"{option}: {mistake}") from None


def status(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """The pools and the replicas: who serves and why, weights, load, and whether one may go."""
    from rich.console import Console

    from envoy_ext.cli.columns import print_text
    from envoy_ext.cli.fleet_tables import build_status_text
    from envoy_ext.operations_client import fetch_status

    found = asyncio.run(fetch_status(url))
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_text(Console(), build_status_text(found))


def capacity(
    config: ConfigOption,
    url: Annotated[
        str | None,
        typer.Option("--url", help="A sidecar's operations port; the one of the configuration unless given."),
    ] = None,
    requests: Annotated[
        list[str] | None,
        typer.Option(
            "--requests",
            metavar="POOL=N",
            help="Ask no sidecar: requests at once of a pool; may be repeated.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Is there room when a replica, a node or a zone goes? Exit status 1 when a pool has none.

    Asks the running sidecar for the load it has measured. Without one it says what the file alone tells,
    or, with --requests, what would become of so many requests.
    """
    from rich.console import Console

    from envoy_ext.cli.capacity import ask_report, parse_requests, plan_report, read_status
    from envoy_ext.cli.columns import print_text
    from envoy_ext.cli.fleet_tables import build_capacity_text
    from envoy_ext.config import load_config

    loaded = load_config(config)
    if requests and url is not None:
        raise typer.BadParameter("--url and --requests: give one of the two")
    if requests:
        given = parse_requests(requests, loaded.pools)
        report = plan_report(loaded, given, "load as given with --requests; every replica is taken to serve")
    else:
        report = asyncio.run(ask_report(loaded, url))
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print_text(Console(), build_capacity_text(report))
    sys.exit(read_status(report))


def drain(
    replica: ReplicaArgument,
    url: UrlOption = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=0, help="Seconds to wait for its own streams.")] = 300,
    token_file: TokenFileOption = None,
) -> None:
    """Take a replica out of new work and wait until its own streams are done."""
    from envoy_ext.operations_client import order_drain, wait_drained

    asyncio.run(order_drain(url, replica, limit, _read_token(token_file)))
    left = asyncio.run(wait_drained(url, replica, limit))
    if left:
        fail([f"{replica} gets no new work, and {left} streams still run there after {limit} s"], 1)
    print(f"{replica} is drained")


def undrain(
    replica: ReplicaArgument, url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None
) -> None:
    """Give a drained replica work again."""
    from envoy_ext.operations_client import order_undrain

    asyncio.run(order_undrain(url, replica, _read_token(token_file)))
    print(f"{replica} gets work again")


def _read_token(path: Path | None) -> str | None:
    return None if path is None else path.read_text().strip()
