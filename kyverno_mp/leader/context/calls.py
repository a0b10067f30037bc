"""Maintain the data of a GlobalContextEntry by repeated calls.

Room: leader. Takes: an entry with ``apiCall``, the calls of egress/. Gives: CallSource.
Next: leader/context/cluster.py. May touch: a thread, the API server, services,
the clock, randomness.
Source: docs/behaviour/controllers 11.3; Kyverno pkg/globalcontext/externalapi.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.errors import DependencyError, Error
from kyverno_mp.leader.context.entries import NO_DATA, call_values, failed_values
from kyverno_mp.leader.context.sources import (
    TOO_LARGE,
    EntryState,
    Report,
    SourceThread,
)
from kyverno_mp.limits import GLOBAL_CONTEXT_ENTRY_BYTES_MAX
from kyverno_mp.policy.documents.global_context_entry import GlobalContextEntry
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.values.go.duration import parse_duration

Fetch = Callable[[ApiRequest, int], bytes]
"""Makes one call before a deadline; egress/api_calls.LiveCalls.fetch."""
_CALL_NS_MAX: Final = 30 * 10**9
_REFRESH_S_MIN: Final = 1.0
"""A shorter refreshInterval would overload the called service."""
_REFRESH_S_MAX: Final = 7 * 24 * 3600.0
_RETRY_S: Final = 0.01
_RETRY_FACTOR: Final = 5.0
_RETRY_S_MAX: Final = 60.0


class CallSource(SourceThread):
    """Calls at once, and then one interval after each call has ended.

    KYVERNO: after a failure, old data is not served (docs/behaviour/controllers 11.3).
    """

    def __init__(self, entry: GlobalContextEntry, fetch: Fetch, report: Report) -> None:
        first = EntryState(failed_values(entry.metadata.name, NO_DATA))
        super().__init__(entry, first, report)
        call = entry.spec.api_call
        assert call is not None
        self._fetch = fetch
        self._attempts = call.retry_limit
        interval_ns = parse_duration(call.refresh_interval) or 0
        self._interval_s = min(_REFRESH_S_MAX, max(_REFRESH_S_MIN, interval_ns / 1e9))
        self._request = _request_of(entry)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._refresh()
            self._stopping.wait(self._interval_s)

    def _refresh(self) -> None:
        try:
            body = self._fetch_with_retries()
            if len(body) > GLOBAL_CONTEXT_ENTRY_BYTES_MAX:
                self._fail(TOO_LARGE)
                return
            values = call_values(self._name, body, self._entry.spec.projections)
        except Error as error:
            cause = error.__cause__
            detail = cause.message if isinstance(cause, DependencyError) else ""
            self._fail(error.message, detail)
            return
        now = datetime.now(UTC)
        self._set_state(
            EntryState(values, ready=True, message="", refreshed=now, settled=True)
        )

    def _fetch_with_retries(self) -> bytes:
        """Call, and retry with a back-off. Raises: the last Error."""
        pause_s = _RETRY_S
        for attempt in range(1, self._attempts + 1):
            try:
                return self._fetch(self._request, time.monotonic_ns() + _CALL_NS_MAX)
            except Error:
                if attempt == self._attempts or self._stopping.is_set():
                    raise
            scattered = pause_s * random.uniform(1.0, 1.1)  # noqa: S311 - no secret
            self._stopping.wait(scattered)
            pause_s = min(_RETRY_S_MAX, pause_s * _RETRY_FACTOR)
        raise AssertionError("the last attempt returns or raises")


def _request_of(entry: GlobalContextEntry) -> ApiRequest:
    """Return the call as written, without variable substitution."""
    call = entry.spec.api_call
    assert call is not None
    body = None
    if call.data or call.method == "POST":
        body = {item.key: item.value for item in call.data}
    if call.url_path:
        return ApiRequest(method=call.method, path=call.url_path, body=body)
    service = call.service
    return ApiRequest(
        method=call.method,
        url=service.url if service else "",
        headers=tuple((header.key, header.value) for header in service.headers)
        if service
        else (),
        body=body if call.method == "POST" else None,
        ca_bundle=service.ca_bundle if service else "",
    )
