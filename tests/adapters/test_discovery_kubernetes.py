"""Following a Service of Kubernetes, against an API server on real HTTP."""

import asyncio
import contextlib
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from envoy_ext.adapters.discovery_kubernetes import KubernetesSource, KubernetesTiming
from envoy_ext.adapters.discovery_kubernetes_api import KubernetesApi, ServicePlace
from envoy_ext.domain.discovery import Listing, ListingFailed, Standing, Told
from tests.support.kube_api import PATH, KubeApi, forbidden, names_of, status
from tests.support.slices import ending, pod, slice_of

QUICK = KubernetesTiming(
    list_s=5.0, watch_s=60.0, silence_s=1.0, retry_first_s=0.01, retry_most_s=0.05, settled_s=0.2
)
A, B, C = (pod(name, f"10.0.0.{number}") for number, name in enumerate("abc", 1))


class Followed:
    """What a source has told so far."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._news = asyncio.Event()

    async def follow(self, source: KubernetesSource) -> None:
        async for told in source.follow():
            self.told.append(told)
            self._news.set()

    async def wait(self, holds: Callable[[Told], bool]) -> None:
        """Until what was told last is so."""
        async with asyncio.timeout(10):
            while not (self.told and holds(self.told[-1])):
                self._news.clear()
                await self._news.wait()

    async def wait_names(self, *names: str) -> None:
        await self.wait(lambda told: isinstance(told, Listing) and names_of(told.members) == list(names))

    async def wait_failure(self, reason: str) -> str:
        await self.wait(lambda told: isinstance(told, ListingFailed) and told.reason == reason)
        assert isinstance(self.told[-1], ListingFailed)
        return self.told[-1].detail

    @property
    def lists(self) -> list[list[str]]:
        """Each list that was told, told twice only where it changed."""
        names = [names_of(told.members) for told in self.told if isinstance(told, Listing)]
        return [one for before, one in zip([[""], *names], names, strict=False) if one != before]


def place(api: KubeApi, token_file: Path, /, **more: Any) -> ServicePlace:
    known = {"namespace": "ml", "api": api.url, "token_file": str(token_file)}
    return ServicePlace("vllm", "http", **{**known, **more})


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("token-1\n")
    return path


@asynccontextmanager
async def follow(api: KubeApi, token_file: Path, /, **more: Any) -> AsyncIterator[Followed]:
    timing = more.pop("timing", QUICK)
    followed = Followed()
    source = KubernetesSource(place(api, token_file, **more), timing)
    task = asyncio.create_task(followed.follow(source))
    try:
        yield followed
        assert not task.done(), "a source never ends by itself"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_list_first_and_then_each_change(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A), slice_of(C, name="other", service="other"))
    async with api.run(), follow(api, token_file) as followed:
        await followed.wait_names("a")
        await api.wait_watched()
        api.put(slice_of(A, B))
        await followed.wait_names("a", "b")
        api.put(slice_of(A, ending("b", "10.0.0.2")))
        await followed.wait(lambda told: told.members[1].standing is Standing.LEAVING)  # type: ignore[union-attr]
        api.put(slice_of(name="s2"))
        api.put(slice_of(C, name="s2"))
        api.delete("vllm-abc")
        await followed.wait_names("c")
        api.delete("s2")
        await followed.wait_names()
    assert (api.count("list"), api.count("watch")) == (1, 1)
    listed, watched = api.asked
    assert listed.query == {"labelSelector": "kubernetes.io/service-name=vllm", "limit": "500"}
    assert watched.query["resourceVersion"] == "102"
    assert watched.query["allowWatchBookmarks"] == "true"
    assert {listed.token, watched.token} == {"token-1"}


async def test_a_list_comes_page_by_page(token_file: Path) -> None:
    api = KubeApi(page=2)
    api.put(*(slice_of(pod(f"p{n}", f"10.0.{n}.1"), name=f"s{n}") for n in range(5)))
    async with api.run(), follow(api, token_file) as followed:
        await followed.wait_names("p0", "p1", "p2", "p3", "p4")
    assert api.count("list") == 3
    assert followed.lists == [["p0", "p1", "p2", "p3", "p4"]], "never a part of it"


async def test_a_page_that_is_too_old_begins_the_list_again(token_file: Path) -> None:
    api = KubeApi(page=1)
    api.put(slice_of(A, name="s1"), slice_of(B, name="s2"))
    async with api.run():
        api.refuse("list", {"metadata": {"resourceVersion": "7", "continue": "lost"}, "items": []})
        async with follow(api, token_file) as followed:
            await followed.wait_names("a", "b")
    assert followed.lists == [["a", "b"]]


async def test_a_watch_that_ends_goes_on_where_it_ended(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    async with api.run(), follow(api, token_file) as followed:
        for end in ("end", "cut"):
            watch = await api.wait_watched()
            getattr(watch, end)()
            await api.wait_until(lambda gone=watch: gone not in api.watches)  # type: ignore[misc]
        api.put(slice_of(A, B))  # while nobody may be watching
        await followed.wait_names("a", "b")
    assert api.count("list") == 1
    assert not [told for told in followed.told if isinstance(told, ListingFailed)]


async def test_a_watch_is_asked_to_end_in_time_and_begun_again(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    async with (
        api.run(),
        follow(api, token_file, timing=KubernetesTiming(watch_s=1.0, retry_first_s=0.01)) as followed,
    ):
        await api.wait_until(lambda: api.count("watch") >= 2)
        api.put(slice_of(A, B))
        await followed.wait_names("a", "b")
    assert api.count("list") == 1


async def test_a_line_that_was_cut_is_no_change_and_comes_again(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    async with api.run(), follow(api, token_file) as followed:
        watch = await api.wait_watched()
        api.watches.remove(watch)  # it does not get the next change whole
        try:
            api.put(slice_of(B))
            line = json.dumps({"type": "MODIFIED", "object": slice_of(B)}).encode()
            watch.cut(line[: len(line) // 2])
        finally:
            api.watches.append(watch)
        await followed.wait_names("b")
    assert followed.lists == [["a"], ["b"]]
    assert api.count("list") == 1


async def test_an_event_may_come_in_pieces_and_several_in_one(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    async with api.run(), follow(api, token_file) as followed:
        watch = await api.wait_watched()
        lines = [
            json.dumps({"type": "MODIFIED", "object": slice_of(*pods, version=str(version))}).encode() + b"\n"
            for version, pods in enumerate(([A, B], [B], [B, C]), 300)
        ]
        watch.send_bytes(*(lines[0][at : at + 50] for at in range(0, len(lines[0]), 50)))
        await followed.wait_names("a", "b")
        watch.send_bytes(lines[1] + lines[2] + b"\n")
        await followed.wait_names("b", "c")
    assert followed.lists == [["a"], ["a", "b"], ["b", "c"]], "what comes together is told together"


async def test_what_is_too_old_to_watch_from_is_listed_again(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A, B))
    async with api.run(), follow(api, token_file) as followed:
        watch = await api.wait_watched()
        api.watches.remove(watch)
        api.put(slice_of(B, C))
        api.pass_unseen()
        api.watches.append(watch)
        watch.cut()
        await followed.wait_names("b", "c")
        await api.wait_until(lambda: api.count("watch") == 3)
    assert [one.verb for one in api.asked] == ["list", "watch", "watch", "list", "watch"]
    assert not [told for told in followed.told if isinstance(told, ListingFailed)]


async def test_410_may_come_as_a_status_too(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    api.refuse("watch", status(410, "Gone", "too old resource version"))
    async with api.run(), follow(api, token_file) as followed:
        await api.wait_watched()
        await followed.wait_names("a")
    assert api.count("list") == 2


async def test_a_bookmark_moves_where_the_next_watch_goes_on(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    async with api.run(), follow(api, token_file) as followed:
        watch = await api.wait_watched()
        for _ in range(5):
            api.bookmark()
        api.put(slice_of(B))
        await followed.wait_names("b")
        api.bookmark()
        watch.end()
        await api.wait_until(lambda: api.count("watch") == 2)
    assert api.asked[-1].query["resourceVersion"] == "108"


async def test_an_error_inside_a_watch_is_told_and_all_is_listed_again(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    async with api.run(), follow(api, token_file) as followed:
        watch = await api.wait_watched()
        watch.send({"type": "ERROR", "object": status(500, "InternalError", "etcdserver: no leader")})
        await api.wait_until(lambda: api.count("list") == 2)
        await followed.wait_names("a")
    failures = [told for told in followed.told if isinstance(told, ListingFailed)]
    assert failures == [ListingFailed("api_error", "the API ended its watch: etcdserver: no leader")]


@pytest.mark.parametrize("line", [b"{}\n", b"null\n", b"<html>\n", b'{"type":"ADDED","object":{}}\n'])
async def test_a_line_that_is_no_event_is_told_and_all_is_listed_again(line: bytes, token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    async with api.run(), follow(api, token_file) as followed:
        watch = await api.wait_watched()
        watch.send_bytes(line)
        await api.wait_until(lambda: api.count("list") == 2)
        await followed.wait_names("a")
    assert {told.reason for told in followed.told if isinstance(told, ListingFailed)} == {"bad_answer"}


async def test_a_kind_of_event_that_is_not_known_is_passed_over(token_file: Path) -> None:
    api = KubeApi()
    async with api.run(), follow(api, token_file) as followed:
        watch = await api.wait_watched()
        watch.send({"type": "RENAMED", "object": slice_of(A)})
        api.put(slice_of(B))
        await followed.wait_names("b")
    assert api.count("list") == 1


async def test_a_watch_nobody_answers_any_more_is_given_up(token_file: Path) -> None:
    api = KubeApi(deaf=True)
    api.put(slice_of(A))
    timing = KubernetesTiming(watch_s=0.2, silence_s=0.2, retry_first_s=0.01)
    async with api.run(), follow(api, token_file, timing=timing) as followed:
        await api.wait_watched()
        api.put(slice_of(B))
        await api.wait_until(lambda: api.count("watch") >= 2)
        api.deaf = False
        await followed.wait_names("b")


# --- an API that refuses ----------------------------------------------------------------------------


async def test_what_rbac_does_not_allow_is_told_with_its_mend(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    api.refuse("list", forbidden("list"))
    api.refuse("watch", forbidden("watch"))
    async with api.run(), follow(api, token_file) as followed:
        await api.wait_watched()
        await followed.wait_names("a")  # a watch that stands ends the failure
    details = [told.detail for told in followed.told if isinstance(told, ListingFailed)]
    for verb, detail in zip(("list", "watch"), details, strict=True):
        assert detail == (
            f"the API does not let us {verb} EndpointSlices in namespace ml (403): give the sidecar's "
            "service account a Role with the verbs list and watch on endpointslices of the API group "
            "discovery.k8s.io: endpointslices.discovery.k8s.io is forbidden: User "
            f'"system:serviceaccount:ml:default" cannot {verb} resource "endpointslices" in API group '
            '"discovery.k8s.io" in the namespace "ml"'
        )


async def test_a_token_that_was_replaced_is_read_anew(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    async with api.run(), follow(api, token_file) as followed:
        watch = await api.wait_watched()
        api.token = "token-2"
        watch.end()
        detail = await followed.wait_failure("unauthorized")
        assert "token-" not in detail
        token_file.write_text("token-2")
        api.put(slice_of(B))
        await followed.wait_names("b")
    assert api.count("list") == 1, "a token says nothing of what is known"


REFUSALS = [
    (status(404, "NotFound", "the server could not find the requested resource"), "not_found"),
    (status(500, "InternalError", "etcdserver: request timed out"), "api_error"),
    (status(429, "TooManyRequests", "too many requests"), "api_error"),
]


@pytest.mark.parametrize(("said", "reason"), REFUSALS)
async def test_a_refusal_is_told_and_asked_again(said: dict[str, Any], reason: str, token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    api.refuse("list", said)
    async with api.run(), follow(api, token_file) as followed:
        await followed.wait_names("a")
    assert isinstance(followed.told[0], ListingFailed)
    assert followed.told[0].reason == reason


ODD_LISTS = [
    "",
    "{",
    "[]",
    "<html>a captive portal</html>",
    '{"items": []}',
    '{"metadata": {}, "items": [{}]}',
]


@pytest.mark.parametrize("body", ODD_LISTS)
async def test_a_list_that_is_none_is_told_and_asked_for_again(body: str, token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    api.refuse("list", body)
    async with api.run(), follow(api, token_file) as followed:
        await followed.wait_names("a")
    assert [told.reason for told in followed.told if isinstance(told, ListingFailed)] == ["bad_answer"]


async def test_the_api_says_when_to_ask_again(token_file: Path) -> None:
    api = KubeApi()
    said = status(429, "TooManyRequests", "The apiserver is overloaded")
    api.refuse("list", said, **{"Retry-After": "1"})
    async with api.run(), follow(api, token_file):
        await api.wait_until(lambda: api.count("list") == 2)
    first, second = api.asked[:2]
    assert second.at - first.at >= 1.0


async def test_a_redirect_is_not_followed_with_a_token(token_file: Path) -> None:
    api, elsewhere = KubeApi(), KubeApi()
    async with api.run(), elsewhere.run():
        api.refuse("list", "", 302, Location=elsewhere.url + PATH.format(namespace="ml"))
        async with follow(api, token_file) as followed:
            await followed.wait_names()
    assert elsewhere.asked == []


async def test_an_api_that_is_away_leaves_what_it_told_last(token_file: Path) -> None:
    api = KubeApi()
    api.put(slice_of(A))
    running = api.run()
    await running.__aenter__()
    async with follow(api, token_file) as followed:
        await followed.wait_names("a")
        await api.wait_watched()
        await running.__aexit__(None, None, None)
        detail = await followed.wait_failure("unreachable")
        assert detail == "the API cannot be reached (ClientConnectorError)"
        assert followed.lists == [["a"]]
        api.put(slice_of(B))
        async with api.run(int(api.url.rpartition(":")[2])):
            await followed.wait_names("b")
    assert followed.lists == [["a"], ["b"]]


async def test_an_api_that_says_nothing_is_told_and_asked_again(
    token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envoy_ext.adapters.discovery_kubernetes_api.OPEN_S", 0.2)
    api = KubeApi(hanging=True)
    api.put(slice_of(A))
    async with api.run(), follow(api, token_file) as followed:
        await followed.wait_failure("timeout")
        api.hanging = False
        await followed.wait_names("a")


async def test_a_server_that_ends_every_watch_at_once_is_asked_ever_more_rarely(token_file: Path) -> None:
    api = KubeApi()
    timing = KubernetesTiming(retry_first_s=0.02, retry_most_s=0.3, settled_s=60.0)
    for _ in range(6):
        api.refuse("watch", "")
    async with api.run(), follow(api, token_file, timing=timing):
        await api.wait_watched()
    at = [one.at for one in api.asked if one.verb == "watch"]
    waits = [later - earlier for earlier, later in itertools.pairwise(at)]
    for wait_s, most_s in zip(waits, (0.02, 0.04, 0.08, 0.16, 0.3, 0.3), strict=True):
        assert wait_s >= most_s / 2


async def test_many_sidecars_that_lose_one_api_do_not_come_back_at_once(token_file: Path) -> None:
    api = KubeApi()
    async with api.run():
        timing = KubernetesTiming(retry_first_s=0.4)
        followers = [follow(api, token_file, timing=timing) for _ in range(20)]
        for one in followers:
            await one.__aenter__()
        await api.wait_until(lambda: len(api.watches) == 20)
        lost_at = asyncio.get_running_loop().time()
        for watch in list(api.watches):
            watch.cut()
        await api.wait_until(lambda: api.count("watch") == 40)
        waits = [one.at - lost_at for one in api.asked if one.verb == "watch"][20:]
        for one in followers:
            await one.__aexit__(None, None, None)
    assert min(waits) >= 0.2
    assert max(waits) - min(waits) >= 0.05, "drawn by lot"
    assert api.count("list") == 20, "and none of them needs the list again"


# --- credentials and TLS ----------------------------------------------------------------------------


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, token_file: Path) -> None:
    api = KubeApi()
    async with api.run():
        async with follow(api, tmp_path / "nowhere") as followed:
            assert str(tmp_path / "nowhere") in await followed.wait_failure("credentials")
        for content in (" ", "two\nlines", "tökèn"):
            token_file.write_text(content)
            async with follow(api, token_file) as followed:
                await followed.wait_failure("credentials")
        token_file.write_text("token-1")
        async with follow(api, token_file, api="https://127.0.0.1:1", ca_file=str(token_file)) as followed:
            assert "ca_file" in await followed.wait_failure("credentials")
    assert api.asked == []


async def test_outside_of_a_cluster_the_address_must_be_given() -> None:
    source = KubernetesSource(
        ServicePlace("vllm", "http", namespace="ml"),
        QUICK,
        build_api=lambda place: KubernetesApi(place, environ={}),
    )
    async with contextlib.aclosing(source.follow()) as following:
        told = await anext(following)
    assert isinstance(told, ListingFailed)
    assert (told.reason, "discovery.kubernetes.api" in told.detail) == ("not_in_cluster", True)


async def test_an_api_is_believed_by_its_ca_alone_and_a_pod_finds_it(
    tmp_path: Path, token_file: Path
) -> None:
    ca, other_ca = trustme.CA(), trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(tls)
    ca.cert_pem.write_to_path(tmp_path / "ca.crt")
    other_ca.cert_pem.write_to_path(tmp_path / "other.crt")
    api = KubeApi()
    api.put(slice_of(A))
    async with api.run(tls=tls):
        async with follow(api, token_file, ca_file=str(tmp_path / "other.crt")) as followed:
            assert "ca_file" in await followed.wait_failure("tls")
        assert api.asked == [], "so it never saw the token"
        host, port = api.url.removeprefix("https://").split(":")
        environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        where = place(api, token_file, api=None, ca_file=str(tmp_path / "ca.crt"))
        source = KubernetesSource(where, QUICK, build_api=lambda place: KubernetesApi(place, environ))
        async with contextlib.aclosing(source.follow()) as following:
            told = await anext(following)
        assert isinstance(told, Listing)
        assert names_of(told.members) == ["a"]


async def test_https_to_what_speaks_no_tls_is_told(tmp_path: Path, token_file: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    api = KubeApi()
    async with api.run():
        url = api.url.replace("http:", "https:")
        async with follow(api, token_file, api=url, ca_file=str(tmp_path / "ca.crt")) as followed:
            await followed.wait_failure("tls")


async def test_the_role_in_the_docs_allows_what_is_asked_and_nothing_else(token_file: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    block = next(one for one in text.split("```") if "kind: RoleBinding" in one)
    role, binding = yaml.safe_load_all(block.removeprefix("yaml"))
    api = KubeApi()
    async with api.run(), follow(api, token_file):
        await api.wait_watched()
    (rule,) = role["rules"]
    assert set(rule["verbs"]) == {one.verb for one in api.asked}
    assert (rule["apiGroups"], rule["resources"]) == (["discovery.k8s.io"], ["endpointslices"])
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
