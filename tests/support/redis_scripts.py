"""Every script that the Redis journal has."""

from typing import Final

from envoy_ext.adapters import (
    journal_redis_archive,
    journal_redis_jobs,
    journal_redis_ledger,
    journal_redis_scripts,
)
from envoy_ext.adapters.journal_redis_scripts import Script

EVERY_SCRIPT: Final = [
    one
    for module in (journal_redis_scripts, journal_redis_ledger, journal_redis_archive, journal_redis_jobs)
    for one in vars(module).values()
    if isinstance(one, Script)
]
