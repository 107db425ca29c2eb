"""Imports point inwards: each layer sees only those that the design allows it."""

import ast
import itertools
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "envoy_ext"

ALLOWED = {
    "domain": set(),
    "ports": {"domain"},
    "config": {"domain"},
    "xds": {"domain", "_pb"},
    "services": {"domain", "ports", "xds"},
    "observability": {"domain", "ports"},
    "http2": set(),
    "adapters": {"domain", "ports", "xds", "http2", "services", "_pb"},
    "worker": {"domain", "_pb"},
    "sim": {"domain"},
    "bootstrap": {"config", "domain"},
}
"""Layer -> the other layers it may import; `_pb` holds our own generated messages."""

OUTER = {"app", "wiring", "stack", "cli", "drills", "operations_client", "__main__"}
"""What puts the layers together, or talks to them from outside: may import all, imported by none of them."""

NOT_IN_THE_CORE = {
    *("asyncio", "concurrent", "threading", "multiprocessing", "subprocess", "signal", "selectors"),
    *("time", "datetime", "random", "secrets", "uuid", "logging", "warnings"),
    *("os", "io", "pathlib", "shutil", "tempfile", "socket", "ssl", "http", "sqlite3"),
}
"""Standard library, but clocks, chance, tasks, logs and IO."""

FILTERS = ("extproc_caller", "extproc_delivery", "extproc_attempt", "extproc_tool")
SHARED_ADAPTERS = {"headers", "extproc_session", "protobuf_wire", "resolver"}
TRANSPORTS = {"grpc_server", "grpc_native", "grpc_native_calls", "grpc_services"}
"""Drive the sessions of all gRPC services, so they know each of them; none of them knows one of these."""

SANS_IO = ("domain", "http2")


def read_imports(source: str) -> set[str]:
    """Dotted names of all modules a file imports, at whatever depth; `from a import b` gives `a.b` too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides its direction"
            assert node.module is not None
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def read_layers(source: str) -> set[str]:
    """The layers of our own that a file imports."""
    own = {name.split(".")[1] for name in read_imports(source) if name.startswith("envoy_ext.")}
    return own - {"__version__"}


def files_of(layer: str) -> list[Path]:
    module = PACKAGE / f"{layer}.py"
    return [module] if module.exists() else sorted((PACKAGE / layer).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


INNER_FILES = [path for layer in ALLOWED for path in files_of(layer)]
CORE_FILES = [*files_of("domain"), *files_of("ports")]
SANS_IO_FILES = [path for layer in SANS_IO for path in files_of(layer)]
ADAPTER_FILES = files_of("adapters")


@pytest.mark.parametrize("path", INNER_FILES, ids=name_of)
def test_a_layer_imports_only_what_lies_further_in(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    strangers = read_layers(path.read_text()) - ALLOWED[layer] - {layer}
    assert not strangers, f"{name_of(path)} imports {sorted(strangers)}"


@pytest.mark.parametrize("path", CORE_FILES, ids=name_of)
def test_the_core_imports_the_standard_library_alone(path: Path) -> None:
    modules = {name.split(".")[0] for name in read_imports(path.read_text())}
    assert modules <= sys.stdlib_module_names | {"envoy_ext"}


@pytest.mark.parametrize("path", files_of("http2"), ids=name_of)
def test_http2_imports_the_standard_library_and_hpack(path: Path) -> None:
    modules = {name.split(".")[0] for name in read_imports(path.read_text())}
    assert modules <= sys.stdlib_module_names | {"envoy_ext", "hpack"}


@pytest.mark.parametrize("path", SANS_IO_FILES, ids=name_of)
def test_the_core_has_no_clock_no_chance_no_tasks_no_logs_and_no_io(path: Path) -> None:
    tree = ast.parse(path.read_text())
    modules = {name.split(".")[0] for name in read_imports(path.read_text())}
    assert not modules & NOT_IN_THE_CORE
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval"}
    methods = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert not methods & {"now", "utcnow", "today"}, "a clock"
    assert not any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(tree))


@pytest.mark.parametrize("path", ADAPTER_FILES, ids=name_of)
def test_adapters_do_not_know_each_other(path: Path) -> None:
    """Parts of one adapter (`ops_http`, `ops_guard`) do; codecs, headers and engines are for all."""
    families = (
        "ops_",
        "extproc_delivery",
        "discovery_kubernetes",
        "journal_memory",
        "journal_sqlite",
        "journal_redis",
    )
    importer = path.relative_to(PACKAGE / "adapters").parts[0].removesuffix(".py")
    for name in read_imports(path.read_text()):
        parts = name.split(".")
        if parts[:2] != ["envoy_ext", "adapters"] or len(parts) < 3:
            continue
        other = parts[2]
        shared = other in SHARED_ADAPTERS or other.endswith("_codec") or other == "engines"
        same = other == importer or any(other.startswith(f) and importer.startswith(f) for f in families)
        assert shared or same or importer in TRANSPORTS, f"{name_of(path)} imports {other}"
        assert other not in TRANSPORTS or importer in TRANSPORTS


def test_the_ext_proc_filters_never_see_each_other() -> None:
    """They meet in the exchange, and in the ledger."""
    for one, other in itertools.permutations(FILTERS, 2):
        source = (PACKAGE / "adapters" / f"{one}.py").read_text()
        assert not any(other in name for name in read_imports(source))


def test_every_module_belongs_to_a_layer() -> None:
    known = set(ALLOWED) | OUTER | {"__init__", "_pb"}
    found = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if not path.name.startswith("__pyc")}
    assert found <= known, f"in no layer: {sorted(found - known)}"


@pytest.mark.parametrize(
    ("source", "layers"),
    [
        ("import envoy_ext.services.exchanges", {"services"}),
        ("from envoy_ext import app", {"app"}),
        ("from envoy_ext.adapters import headers", {"adapters"}),
        ("def f():\n    from envoy_ext.config.model import Config", {"config"}),
        ("if TYPE_CHECKING:\n    from envoy_ext.xds import snapshot", {"xds"}),
        ("import json\nfrom envoy_ext import __version__", set()),
    ],
)
def test_this_test_sees_imports_of_every_form(source: str, layers: set[str]) -> None:
    assert read_layers(source) == layers


def test_this_test_refuses_relative_imports() -> None:
    with pytest.raises(AssertionError):
        read_layers("from . import step")
