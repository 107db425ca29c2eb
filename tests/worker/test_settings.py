"""A worker's settings, as an engine's environment gives them."""

import pytest

from envoy_ext.domain.errors import ConfigError
from envoy_ext.worker.settings import WorkerSettings


def test_gateways_of_both_kinds_are_read_in_their_order() -> None:
    named = " http://10.0.0.5:9903/, https://gateway.example ,http://[::1]:9903,grpc://[fd00::5]:9905"
    settings = WorkerSettings.from_environment({"ENVOY_EXT_GATEWAYS": named})
    assert settings.gateways == (
        "http://10.0.0.5:9903",
        "https://gateway.example",
        "http://[::1]:9903",
        "grpc://[fd00::5]:9905",
    )


@pytest.mark.parametrize("value", [None, "", " , "])
def test_no_gateway_is_a_mistake_that_says_what_to_set(value: str | None) -> None:
    environment = {} if value is None else {"ENVOY_EXT_GATEWAYS": value}
    with pytest.raises(ConfigError, match="ENVOY_EXT_GATEWAYS: name the gateways"):
        WorkerSettings.from_environment(environment)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "10.0.0.5:9903",
            "http://",
            "http://h:0",
            "http://h:99999",
            "http://h/path",
            "ftp://h",
            "http://u:p@h",
        ),
        *("grpc://h", "grpc://:1", "grpc://h:1/path", "grpcs://h:1", "unix:///path"),
    ],
)
def test_what_is_no_base_url_is_named(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        WorkerSettings.from_environment({"ENVOY_EXT_GATEWAYS": f"http://ok:1,{url}"})
    assert str(raised.value) == f"ENVOY_EXT_GATEWAYS: {url} is neither http://host:port nor grpc://host:port"
