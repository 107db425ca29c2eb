"""One question to the API of a Kubernetes cluster, and what it means when no answer comes.

A part of `discovery_kubernetes`, which knows what to ask and when. What is asked for with `None` is
what a pod finds in itself: address, token, CA and namespace.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import hdrs

from envoy_ext import __version__
from envoy_ext.domain.discovery import ListingFailed
from envoy_ext.domain.slice_watch import GONE, BadAnswer, parse_status

POD_FILES: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod has its token, the cluster's CA and its namespace, unless it says otherwise."""

OPEN_S: Final = 10.0
"""Until the head of an answer has come; a watch has its own at once."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one answer, or of one event. The largest slice, of 1,000 endpoints, has half a megabyte."""

LONGEST_RETRY_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ServicePlace:
    """A Service, and how to ask the API of its cluster."""

    service: str
    port: int | str
    namespace: str | None = None
    api: str | None = None
    token_file: str | None = None
    ca_file: str | None = None


class ApiFailed(Exception):
    """The API cannot be asked, or does not answer as it should."""

    def __init__(self, reason: str, detail: str, *, stale: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(detail)
        self.told = ListingFailed(reason, detail)
        self.stale = stale
        """What is known must be listed again."""
        self.wait_s = wait_s
        """By the API's own word."""


class TooOld(Exception):
    """The version that is asked for lies too far back."""


class KubernetesApi:
    """Asks for the slices of one Service. `aclose` it once."""

    def __init__(self, place: ServicePlace, environ: Mapping[str, str] = os.environ) -> None:
        self._place = place
        self._environ = environ
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),  # one question in minutes: no use in keeping it
            headers={hdrs.USER_AGENT: f"envoy-ext/{__version__}", hdrs.ACCEPT: "application/json"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.close()

    @contextlib.asynccontextmanager
    async def ask(
        self, verb: str, params: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer of 200, which may be silent for so long. Token and CA are read anew each time: both
        are replaced while a pod runs.

        Raises:
            ApiFailed: there is no such answer.
            TooOld: the API says 410.
        """
        namespace = self._place.namespace or self._read_file("namespace", "discovery.kubernetes.namespace")
        url = f"{self._find_api()}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        selector = {"labelSelector": f"kubernetes.io/service-name={self._place.service}"}
        with map_errors():
            async with asyncio.timeout(OPEN_S):
                answer = await self._http.get(
                    url,
                    params=selector | dict(params),
                    headers=self._build_headers(),
                    ssl=self._build_tls(url),
                    allow_redirects=False,  # a token is for whoever it was given for
                    timeout=aiohttp.ClientTimeout(total=None, sock_read=silence_s),
                )
        try:
            if answer.status != 200:
                raise await _read_refusal(answer, verb, namespace)
            _watch_the_way(answer)
            yield answer
        finally:
            answer.close()

    # --- what a pod finds in itself ---------------------------------------------------------------

    def _find_api(self) -> str:
        if self._place.api is not None:
            return self._place.api.rstrip("/")
        host = self._environ.get("KUBERNETES_SERVICE_HOST", "")
        port = self._environ.get("KUBERNETES_SERVICE_PORT", "") or "443"
        if not host:
            detail = "this is no pod of a cluster: set discovery.kubernetes.api, or run in one"
            raise ApiFailed("not_in_cluster", detail)
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    def _build_headers(self) -> dict[str, str]:
        if self._place.token_file is None and not Path(POD_FILES, "token").exists():
            return {}  # some APIs want none, such as a proxy on loopback
        token = self._read_file("token", "discovery.kubernetes.token_file", self._place.token_file)
        if not token.isascii() or not token.isprintable():
            raise ApiFailed("credentials", "the file of discovery.kubernetes.token_file holds no token")
        return {hdrs.AUTHORIZATION: f"Bearer {token}"}

    def _build_tls(self, url: str) -> ssl.SSLContext | bool:
        if not url.startswith("https:"):
            return True
        path = self._place.ca_file or f"{POD_FILES}/ca.crt"
        try:
            return ssl.create_default_context(cafile=path)
        except (OSError, ssl.SSLError) as error:
            detail = f"{path} cannot be read as certificates: it is what discovery.kubernetes.ca_file names"
            raise ApiFailed("credentials", detail) from error

    def _read_file(self, name: str, key: str, path: str | None = None) -> str:
        path = path or f"{POD_FILES}/{name}"
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiFailed("credentials", f"{path} cannot be read: set {key}, or run in a pod") from error
        if not text:
            raise ApiFailed("credentials", f"{path} is empty: it is what {key} stands for")
        return text


@contextlib.contextmanager
def map_errors() -> Iterator[None]:
    """What the HTTP client raises, as `ApiFailed`."""
    try:
        yield
    except TimeoutError as error:
        raise ApiFailed("timeout", "the API does not answer in time") from error
    except aiohttp.ClientConnectorCertificateError as error:
        detail = "the API's certificate is not one that discovery.kubernetes.ca_file vouches for"
        raise ApiFailed("tls", detail) from error
    except aiohttp.ClientSSLError as error:
        raise ApiFailed("tls", "no TLS connection to the API comes about") from error
    except BadAnswer as error:
        raise ApiFailed("bad_answer", f"the API answers otherwise than an API does: {error}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ApiFailed("unreachable", f"the API cannot be reached ({type(error).__name__})") from error


async def read_body(answer: aiohttp.ClientResponse, within_s: float) -> bytes:
    """A whole answer.

    Raises:
        ApiFailed: it did not come in time, or not whole.
    """
    body = bytearray()
    with map_errors():
        async with asyncio.timeout(within_s):
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise BadAnswer(f"more than {MAX_BYTES} bytes")
    return bytes(body)


async def _read_refusal(answer: aiohttp.ClientResponse, verb: str, namespace: str) -> Exception:
    """What an answer that is no 200 means."""
    if answer.status == GONE:
        return TooOld()
    said = parse_status(answer.status, await read_body(answer, OPEN_S))
    told = f": {said.message}" if said.message else ""
    match answer.status:
        case 401:
            mend = "it does not take the token of discovery.kubernetes.token_file, or was given none"
            return ApiFailed("unauthorized", f"the API says 401: {mend}{told}")
        case 403:
            mend = (
                "give the sidecar's service account a Role with the verbs list and watch on "
                "endpointslices of the API group discovery.k8s.io"
            )
            what = f"the API does not let us {verb} EndpointSlices in namespace {namespace} (403)"
            return ApiFailed("forbidden", f"{what}: {mend}{told}")
        case 404:
            mend = "is discovery.kubernetes.api right? discovery.k8s.io/v1 came with Kubernetes 1.21"
            return ApiFailed("not_found", f"the API knows no EndpointSlices (404): {mend}")
        case status:
            return ApiFailed("api_error", f"the API says {status}{told}", wait_s=_read_retry_after(answer))


def _read_retry_after(answer: aiohttp.ClientResponse) -> float:
    """Seconds; with 429 the API gives a whole number of them."""
    given = answer.headers.get(hdrs.RETRY_AFTER, "")
    return min(LONGEST_RETRY_AFTER_S, float(given)) if given.isascii() and given.isdigit() else 0.0


def _watch_the_way(answer: aiohttp.ClientResponse) -> None:
    """Let the kernel find out when nobody is there any more: a watch may be silent for minutes by right."""
    transport = answer.connection.transport if answer.connection is not None else None
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is None:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
