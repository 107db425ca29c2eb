"""The reader of metrics pages, on any page.

What has to hold: nothing but `NotMetrics` is raised; a page says the same whatever its slices, and whether
its labels are remembered or read anew; and what is found are the lines that begin with a wanted name.
"""

import random
from pathlib import Path
from typing import Any, Final
from unittest import mock

from envoy_ext.adapters.engines import exposition
from tests.fuzz.http2_wire import Scramble

LONGEST: Final = 8_192
_WANTED: Final = frozenset(
    {
        b"vllm:num_requests_running",
        b"vllm:num_requests_waiting",
        b"vllm:kv_cache_usage_perc",
        b"sglang:num_running_reqs",
        b"llamacpp:requests_processing",
        b"tgi_queue_size",
        b"DCGM_FI_DEV_XID_ERRORS",
        b"a",
        b"ab",
    }
)
_LINES: Final = (
    b"a 1\n",
    b"ab 2\n",
    b"a{} 1\n",
    b'a{b="c"} 1\n',
    b'a{b="c",} 1e3 1700000000\n',
    b'a{b="c" , d = "e"} +Inf\n',
    b"a NaN\n",
    b'a{b="\\"\\\\\\n"} .5\n',
    b'a 1 # {x="y"} 1\n',
    b"a 1_000\n",
    b"a 0x10\n",
    b"a\n",
    b"a{ 1\n",
    b'a{b="c} 1\n',
    b"a\t1\n",
    b"a 1 2 3\n",
    b"# HELP a\n",
    b"# EOF\n",
    b"\r\n",
    b"a 1\r\n",
    b'a{b="\xff"} 1\n',
    b'a{b="c",b="d"} 1\n',
    b"a " + b"9" * 500 + b"\n",
    b"a -0\n",
)
DICTIONARY: Final = tuple(line for line in _LINES if len(line) <= 64)
_DATA: Final = Path(__file__).parent.parent / "data"


def check(data: bytes) -> None:
    """Read one page in several ways.

    Raises:
        AssertionError: a promise is broken; and whatever else the code raises.
    """
    found = _scan(data)
    with mock.patch.object(exposition, "_SLICE_BYTES", 7):
        assert _scan(data) == found, "other slices, other samples"
    with mock.patch.object(exposition, "_REMEMBERED_BYTES", -1):
        assert _scan(data) == found, "labels that are remembered are others"
    if found is not None:
        lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        names = [
            name
            for line in lines
            for name in _WANTED
            if line.startswith(name) and line[len(name) :][:1] in (b"{", b" ", b"\t")
        ]
        assert [one[0] for one in found] == names
    exposition.drop_unfinished_line(data)


def _scan(page: bytes) -> list[tuple[Any, ...]] | None:
    try:
        found = exposition.scan(page, _WANTED)
    except exposition.NotMetrics:
        return None
    return [(one.name, dict(one.labels), repr(one.value)) for one in found]


def seeds() -> list[bytes]:
    """Pages of real engines, and each kind of line."""
    pages = sorted((_DATA / "metrics").glob("*.txt")) + sorted((_DATA / "real").glob("*metrics*.raw"))
    return [*(page.read_bytes()[:LONGEST] for page in pages), *_LINES, b"".join(_LINES)]


def mutate(data: bytes, most: int, rnd: random.Random, scramble: Scramble) -> bytes:
    """Change a page line by line."""
    lines = data.splitlines(keepends=True)
    at = rnd.randrange(len(lines) + 1)
    what = rnd.randrange(4)
    if what == 0 or at == len(lines):
        lines[at:at] = [rnd.choice(_LINES)]
    elif what == 1:
        del lines[at]
    elif what == 2:
        lines[at] = lines[at][:-1] + lines[rnd.randrange(len(lines))]
    else:
        lines[at] = scramble(lines[at], len(lines[at]) + 30)
    return b"".join(lines)[:most]
