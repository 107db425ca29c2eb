"""Tools, as the configuration has them and the services take them.

Belongs to the composition layer, beside `app`.
"""

from envoy_ext.config import Config
from envoy_ext.domain.tool_request import ToolPolicy
from envoy_ext.ports import Clock, Observer, ToolLedger
from envoy_ext.services.background import Background
from envoy_ext.services.tools import Tools


def list_tools(config: Config) -> list[str]:
    """The names of the tools."""
    return [] if config.tools is None else [route.name for route in config.tools.routes]


def build_tools(
    config: Config, ledger: ToolLedger, clock: Clock, observer: Observer, background: Background
) -> Tools | None:
    """The service behind the tool listener; None where there is none."""
    if config.tools is None:
        return None
    policies = {
        route.name: ToolPolicy(
            name=route.name,
            idempotent=route.idempotent,
            get_is_safe=route.get_is_safe,
            ignored=frozenset(route.ignore_arguments),
        )
        for route in config.tools.routes
    }
    return Tools(
        ledger,
        policies,
        require_operation=config.tools.require_operation,
        clock=clock,
        observer=observer,
        background=background,
    )
