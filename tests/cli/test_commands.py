"""The commands as a person runs them, without an Envoy: exit status, output, and a line for each mistake."""

import asyncio
import json
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from envoy_ext import __version__
from tests.support.commands import command, list_group, run_command

CONFIG = """
pools:
  - name: chat
    models: [sim]
    engine: vllm
    replicas:
      - {id: a, url: "http://127.0.0.1:9"}
      - {id: b, url: "http://127.0.0.1:10"}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory that leaves room for a socket's name: its whole path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="envoy-ext-test-") as directory:
        yield Path(directory)


COMMANDS = [
    "demo",
    "run",
    "serve",
    "bootstrap",
    "check",
    "schema",
    "sim-engine",
    "operations",
    "status",
    "capacity",
    "drain",
    "undrain",
]


async def test_every_command_of_the_contract_is_there_and_explains_itself() -> None:
    status, output, _ = await run_command("--help")
    assert status == 0
    assert [name for name in COMMANDS if name not in output] == []
    explained = await asyncio.gather(*(run_command(name, "--help") for name in COMMANDS))
    assert [(status, "Usage" in output) for status, output, _ in explained] == [(0, True)] * len(COMMANDS)


async def test_the_version_is_printed() -> None:
    assert await run_command("--version") == (0, f"envoy-ext {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [["fly"], ["serve"], ["check", "-c", "x", "y"], ["operations", "show"], ["sim-engine"]]
)
async def test_bad_usage_is_exit_status_2(arguments: list[str]) -> None:
    status, output, errors = await run_command(*arguments)
    assert (status, output) == (2, "")
    assert "Usage" in errors


async def test_the_schema_accepts_the_smallest_config_and_is_json() -> None:
    status, output, _ = await run_command("schema")
    assert status == 0
    schema = json.loads(output)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["required"] == ["pools"]
    assert schema["additionalProperties"] is False


async def test_the_bootstrap_goes_to_stdout_or_to_a_file_and_is_the_same(
    config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.yaml"
    printed, written = await asyncio.gather(
        run_command("bootstrap", "-c", str(config)),
        run_command("bootstrap", "-c", str(config), "-o", str(out)),
    )
    assert (printed[0], written[0], written[1]) == (0, 0, "")
    assert out.read_text() == printed[1]
    listeners = yaml.safe_load(printed[1])["static_resources"]["listeners"]
    assert [listener["name"] for listener in listeners] == ["ingress", "egress"]


@pytest.mark.parametrize("name", ["check", "run"])
async def test_a_bad_config_is_exit_status_2_with_one_line_for_each_mistake(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        CONFIG.replace("http://127.0.0.1:10", "ftp://secret@x") + "ingres: {}\nlimits: {max: 1}\n"
    )

    status, output, errors = await run_command(name, "-c", str(path))

    assert (status, output) == (2, "")
    lines = errors.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{path}: ") for line in lines)
    places = [line.removeprefix(f"{path}: ").partition(":")[0] for line in lines]
    assert sorted(places) == ["ingres", "limits.max", "pools[0].replicas[1].url"]
    assert "secret" not in errors


async def test_a_config_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    status, output, errors = await run_command("serve", "-c", str(path))
    assert (status, output) == (2, "")
    assert errors == f"{path}: cannot be read: No such file or directory\n"


async def test_a_config_that_promises_what_cannot_be_is_refused_with_the_reason(config: Path) -> None:
    policy = "on_upstream_failure: {after_first_delta: {automatic_retry: true}}\n"
    config.write_text(CONFIG + policy)
    status, _, errors = await run_command("check", "-c", str(config))
    assert status == 2
    assert "on_upstream_failure.after_first_delta.automatic_retry" in errors
    assert "no verified state transfer" in errors


async def test_an_envoy_that_is_named_and_not_there_is_a_mistake(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, errors = await run_command("check", "-c", str(config), "--envoy", "/nowhere/envoy")
    assert (status, errors) == (1, "--envoy: /nowhere/envoy is not an executable file\n")
    monkeypatch.setenv("ENVOY_BIN", "/nowhere/other")
    status, _, errors = await run_command("check", "-c", str(config))
    assert (status, errors) == (1, "$ENVOY_BIN: /nowhere/other is not an executable file\n")


async def test_an_operations_port_that_nobody_listens_at_is_one_line_and_no_traceback() -> None:
    for arguments in (["list"], ["show", "op_x"]):
        status, output, errors = await run_command("operations", *arguments, "--url", "http://127.0.0.1:9")
        assert (status, output, len(errors.splitlines())) == (1, "", 1)
        assert errors.startswith("http://127.0.0.1:9/v1/operations")
        assert errors.endswith("cannot be asked: Connection refused; does a sidecar run there?\n")


async def test_a_url_without_its_scheme_is_told_how_one_is_written() -> None:
    status, output, errors = await run_command("status", "--url", "127.0.0.1:9902")
    assert (status, output) == (1, "")
    assert errors == "127.0.0.1:9902/v1/pools: is no URL; write one such as http://127.0.0.1:9902\n"


async def test_the_simulated_engine_serves_until_it_is_told_to_stop() -> None:
    async with command(
        "sim-engine", "--port", "0", "--name", "z", "--model", "m", "--tokens", "3"
    ) as running:
        url = (await running.read_line("listening on")).rpartition(" ")[2]
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{url}/v1/models") as answer:
                assert [model["id"] for model in (await answer.json())["data"]] == ["m"]
            body = {"model": "m", "messages": []}
            async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
                text = (await answer.json())["choices"][0]["message"]["content"]
        assert text == "z.1.0 z.1.1 z.1.2 "
        status, _, errors = await run_command("operations", "list", "--url", url)
        place = f"{url}/v1/operations?limit=20"
        assert (status, errors) == (1, f"{place}: is not there: is it a sidecar's operations port?\n")
        port = url.rpartition(":")[2]
        status, _, errors = await run_command("sim-engine", "--port", port)
        taken = f"--port: cannot listen at 127.0.0.1:{port}: Address already in use\n"
        assert (status, errors) == (1, taken)
        assert await running.end(signal.SIGTERM) == 0


async def test_serve_runs_alone_tells_its_health_and_ends_cleanly(short_dir: Path) -> None:
    config = short_dir / "config.yaml"
    config.write_text(
        f"{CONFIG}operations: {{port: 0}}\nsidecar: {{socket: {short_dir}/s.sock}}\n"
        f"journal: {{path: {short_dir}/journal.db}}\n"
    )
    async with command("serve", "-c", str(config)) as running:
        port = (await running.read_line("serves")).rpartition(" ")[2]
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as http:
            for path in ("/healthz/startup", "/healthz/live", "/healthz/ready", "/metrics", "/v1/operations"):
                async with http.get(url + path) as answer:
                    assert (path, answer.status) == (path, 200)
        status, output, _ = await run_command("operations", "list", "--url", url)
        assert (status, output) == (0, "no operations\n")
        status, output, _ = await run_command("operations", "list", "--json", "--url", url)
        assert (status, json.loads(output)) == (0, [])
        status, _, errors = await run_command("operations", "show", "op_none", "--url", url)
        missing = f"op_none: no such operation at {url}; `envoy-ext operations list` names the newest\n"
        assert (status, errors) == (1, missing)
        status, _, errors = await run_command("drain", "x", "--url", url)
        assert (status, errors) == (1, f"x: no such replica at {url}; `envoy-ext status` names them\n")
        assert await running.end(signal.SIGTERM) == 0
        assert list_group(running.process.pid) == []


async def test_serve_at_an_address_that_is_taken_is_one_line(short_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = short_dir / "config.yaml"
        config.write_text(
            f"{CONFIG}operations: {{port: 0}}\njournal: {{store: memory}}\n"
            f"sidecar: {{address: 127.0.0.1, port: {taken.getsockname()[1]}}}\n"
        )
        status, output, errors = await run_command("serve", "-c", str(config))
    assert (status, output) == (1, "")
    assert errors.splitlines()[-1] == f"sidecar: cannot listen at {address}: is it taken?"
    assert "Traceback" not in errors


async def test_a_second_sidecar_leaves_the_socket_of_the_first_alone(short_dir: Path) -> None:
    """Envoy finds the first one by that file, and would find nobody when the second has come and gone."""
    place = short_dir / "sidecar.sock"
    config = short_dir / "config.yaml"
    config.write_text(
        f"{CONFIG}operations: {{port: 0}}\njournal: {{store: memory}}\nsidecar: {{socket: {place}}}\n"
    )
    async with command("serve", "-c", str(config)) as first:
        await first.read_line("serves")
        file = place.stat().st_ino
        for stopped in (False, True):
            if stopped:
                first.process.send_signal(signal.SIGSTOP)
            status, output, errors = await run_command("serve", "-c", str(config))
            assert (status, output) == (1, "")
            assert errors.splitlines()[-1] == f"sidecar: cannot listen at {place}: Address already in use"
            assert place.stat().st_ino == file
        first.process.send_signal(signal.SIGCONT)
        await first.end(signal.SIGKILL)
    # What a dead one left behind is in nobody's way.
    async with command("serve", "-c", str(config)) as third:
        await third.read_line("serves")
        assert await third.end(signal.SIGTERM) == 0


async def test_serve_at_a_socket_that_cannot_be_bound_is_one_line_with_its_path(short_dir: Path) -> None:
    place = short_dir / "directory"
    place.mkdir()
    config = short_dir / "config.yaml"
    config.write_text(
        f"{CONFIG}operations: {{port: 0}}\njournal: {{store: memory}}\nsidecar: {{socket: {place}}}\n"
    )
    status, output, errors = await run_command("serve", "-c", str(config))
    assert (status, output) == (1, "")
    why = "is it taken, or closed to this user?"
    assert errors.splitlines()[-1] == f"sidecar: cannot listen at {place}: {why}"


async def test_an_operations_port_that_is_taken_is_one_line_with_its_key(short_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = short_dir / "config.yaml"
        config.write_text(
            f"{CONFIG}operations: {{port: {port}}}\njournal: {{store: memory}}\n"
            f"sidecar: {{socket: {short_dir}/made/for/it/one.sock}}\n"
        )
        status, output, errors = await run_command("serve", "-c", str(config))
    assert (status, output) == (1, "")
    assert errors.splitlines()[-1] == f"operations: cannot listen at 127.0.0.1:{port}: Address already in use"
    assert (short_dir / "made" / "for" / "it").stat().st_mode & 0o777 == 0o700


async def test_a_change_that_the_sidecar_refuses_is_told_in_its_words(short_dir: Path) -> None:
    config = short_dir / "config.yaml"
    (short_dir / "token").write_text("secret-token\n")
    config.write_text(
        f"{CONFIG}operations: {{port: 0, token_file: {short_dir}/token}}\njournal: {{store: memory}}\n"
        f"sidecar: {{socket: {short_dir}/s.sock}}\n"
    )
    async with command("serve", "-c", str(config)) as running:
        port = (await running.read_line("serves")).rpartition(" ")[2]
        url = f"http://127.0.0.1:{port}"
        status, _, errors = await run_command("undrain", "a", "--url", url)
        assert (status, len(errors.splitlines())) == (1, 1)
        assert errors.endswith("answered 401: This needs the bearer token of operations.token_file.\n")
        status, output, _ = await run_command(
            "undrain", "a", "--url", url, "--token-file", f"{short_dir}/token"
        )
        assert (status, output) == (0, "a gets work again\n")


async def test_check_reads_the_token_file_too(config: Path) -> None:
    config.write_text(CONFIG + "operations: {token_file: /nowhere/token}\n")
    status, _, errors = await run_command("check", "-c", str(config))
    assert status == 2
    assert errors == "operations.token_file: /nowhere/token cannot be read: No such file or directory\n"


async def test_a_second_sidecar_on_the_same_journal_is_refused(short_dir: Path) -> None:
    """Two would end each other's operations as lost."""
    config = short_dir / "config.yaml"
    settings = f"{CONFIG}operations: {{port: 0}}\njournal: {{path: {short_dir}/journal.db}}\n"
    config.write_text(f"{settings}sidecar: {{socket: {short_dir}/one.sock}}\n")
    async with command("serve", "-c", str(config)) as running:
        await running.read_line("serves")
        second = short_dir / "second.yaml"
        second.write_text(f"{settings}sidecar: {{socket: {short_dir}/two.sock}}\n")
        status, output, errors = await run_command("serve", "-c", str(second))
        assert (status, output) == (1, "")
        assert "journal.db" in errors
        assert "Traceback" not in errors
        assert await running.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(("resources", "shown"), [("static", ["full"]), ("xds", ["full", "minimal"])])
async def test_check_shows_envoy_every_form_of_the_rendering(
    resources: str, shown: list[str], config: Path
) -> None:
    """What comes over xDS is in no bootstrap, so Envoy has to see one that holds it."""
    config.write_text(f"{CONFIG}envoy: {{resources: {resources}}}\n")
    envoy = write_envoy(config.parent, refuses="nothing")
    status, output, errors = await run_command("check", "-c", str(config), "--envoy", str(envoy))
    assert (status, errors) == (0, "")
    assert output.endswith("envoy accepts the rendering\n")
    assert (config.parent / "shown").read_text().split() == shown


@pytest.mark.parametrize("form", ["full", "minimal"])
async def test_check_tells_what_envoy_has_against_either_form(form: str, config: Path) -> None:
    config.write_text(f"{CONFIG}envoy: {{resources: xds}}\n")
    envoy = write_envoy(config.parent, refuses=form)
    status, _, errors = await run_command("check", "-c", str(config), "--envoy", str(envoy))
    assert status == 2
    assert errors == f"{config}: envoy refuses the rendering:\nno {form} please\n"


def write_envoy(directory: Path, refuses: str) -> Path:
    """A stand-in for Envoy that notes which form it was shown, and refuses one."""
    script = directory / "envoy"
    script.write_text(
        "#!/bin/sh\n"
        f'form=minimal; grep -q \'"listeners"\' "$4" && form=full\n'
        f"echo $form >> {directory}/shown\n"
        f"[ $form != {refuses} ] || {{ echo no $form please; exit 1; }}\n"
    )
    script.chmod(0o755)
    return script
