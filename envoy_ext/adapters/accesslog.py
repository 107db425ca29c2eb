"""The access-log session: two logs, one for each hop, told apart by the name Envoy sends first."""

from typing import Any

from envoy_ext.adapters.accesslog_codec import (
    is_progress,
    read_attempt_progress,
    read_exchange_progress,
    read_log_entry,
)
from envoy_ext.domain import names
from envoy_ext.services.hop_reports import HopReports


class AccessLogSession:
    """One StreamAccessLogs stream; Envoy opens one for each log and worker."""

    def __init__(self, reports: HopReports) -> None:
        self._reports = reports
        self._log_name = ""

    def receive(self, message: Any) -> None:
        """Take in one StreamAccessLogsMessage. The identifier stands in a stream's first message only."""
        if message.HasField("identifier"):
            self._log_name = message.identifier.log_name
        for entry in message.http_logs.log_entry:
            if is_progress(entry):
                self._receive_progress(entry)
                continue
            facts = read_log_entry(entry)
            if facts is None:
                continue
            if self._log_name == names.LOG_ATTEMPTS:
                self._reports.log_attempt(
                    facts.attempt_id,
                    facts.cause,
                    facts.upstream_address,
                    facts.body_bytes,
                    facts.detail,
                )
            elif self._log_name == names.LOG_EXCHANGES:
                self._reports.log_exchange(facts.exchange_id, facts.cause, facts.detail)

    def _receive_progress(self, entry: Any) -> None:
        if self._log_name == names.LOG_ATTEMPTS:
            self._reports.note_attempt_progress(*read_attempt_progress(entry))
        elif self._log_name == names.LOG_EXCHANGES:
            self._reports.note_exchange_progress(*read_exchange_progress(entry))
