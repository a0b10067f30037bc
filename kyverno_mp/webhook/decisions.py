"""Write one log line for each decision, and the last denials for the dashboard.

Room: webhook. Takes: Records, the setting KYVERNO_MP_LOG_DECISIONS, a DenialFile if the
dashboard is on. Gives: the unchanged Records if neither is, so that it costs nothing;
else Records that also log, or write denials. Next: start.py passes them to the reviews.
May touch: the log, the DenialFile.

SAFETY: a line names the user, the object and the policies. It never quotes the object
or a rule's message, because both can contain a value of a Secret. The dashboard, which
is not open to everybody, shows the messages about other kinds, as reports do.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PolicyResponse
from kyverno_mp.telemetry.denials import Denial, DenialFile
from kyverno_mp.webhook.ports import Records

_LOG = logging.getLogger(__name__)
OFF: Final = "off"
ALL: Final = "all"
_UNDECODED: Final = "admission."
"""Prefix of the codes of reviews that were rejected before they were decoded."""
_NAME_CHARS_MAX: Final = 512
_POLICIES_MAX: Final = 20


def with_decisions(
    records: Records, mode: str, denials: DenialFile | None = None
) -> Records:
    """Return ``records``, with a log line for each decision unless ``mode`` is off.

    ``denials``: receives the denials, at most some in a second.
    """
    if mode != OFF:
        records = DecisionLog(records, logs_all=mode == ALL)
    return records if denials is None else DenialRecords(records, denials)


class _Response(msgspec.Struct):
    allowed: bool


class _Answer(msgspec.Struct):
    response: _Response


def on_policy_review(mode: str) -> Callable[[Request, str, bytes, float], None] | None:
    """Return a function that logs the decision about a policy, None if it is off.

    The function takes the request, the path, the answer and the duration in seconds.
    """

    def log(request: Request, path: str, answer: bytes, seconds: float) -> None:
        allowed = _DECODER.decode(answer).response.allowed
        if mode == ALL or not allowed:
            _write(_about(request, path.strip("/"), seconds), allowed=allowed)

    return None if mode == OFF else log


class DecisionLog:
    """Records that also log decisions, either denials only or all."""

    def __init__(self, records: Records, *, logs_all: bool) -> None:
        self._records = records
        self._logs_all = logs_all
        self.audit = records.audit
        self.http = records.http

    def review(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        """Count one answered review, and log the decision."""
        self._records.review(
            request, webhook, responses, allowed=allowed, seconds=seconds
        )
        if self._logs_all or not allowed:
            self._log(request, webhook, responses, allowed=allowed, seconds=seconds)

    def error(self, code: str) -> None:
        """Count one error; log it if an unreadable review was rejected."""
        self._records.error(code)
        if code.startswith(_UNDECODED):
            _LOG.info("unreadable review rejected", extra={"fields": {"code": code}})

    def _log(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        line = _about(request, webhook, seconds)
        line["policies"] = _names(
            response for response in responses if _has_run(response)
        )
        line["failed"] = _names(one for one in responses if _has_failed(one))
        _write(line, allowed=allowed)


class DenialRecords:
    """Records that also write denials for the dashboard."""

    def __init__(self, records: Records, denials: DenialFile) -> None:
        self._records = records
        self._denials = denials
        self.audit = records.audit
        self.http = records.http
        self.error = records.error

    def review(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        """Count one answered review, and write a denial."""
        self._records.review(
            request, webhook, responses, allowed=allowed, seconds=seconds
        )
        if not allowed and self._denials.is_due():
            self._denials.write(_denial(request, responses))


def _denial(request: Request, responses: Sequence[PolicyResponse]) -> Denial:
    """Describe a denial by the first rule of an enforced policy that failed."""
    failures = [
        (response.policy.key, rule)
        # An error denies in a policy of either action, if it has failurePolicy Fail.
        for response in sorted(responses, key=lambda one: one.action != "Enforce")
        for rule in response.results
        if rule.status in (FAIL, ERROR)
    ]
    policy, rule = failures[0] if failures else ("", None)
    is_secret = request.kind == "Secret"
    return Denial(
        time_s=time.time(),
        operation=request.operation,
        kind=request.kind,
        namespace=request.namespace,
        name=request.name,
        user=request.username,
        policy=policy,
        rule=rule.rule if rule else "",
        message=rule.message if rule and not is_secret else "",
        others=max(len(failures) - 1, 0),
    )


_DECODER: Final = msgspec.json.Decoder(_Answer)


def _about(request: Request, webhook: str, seconds: float) -> dict[str, object]:
    return {
        "uid": request.uid[:_NAME_CHARS_MAX],
        "webhook": webhook,
        "user": request.username[:_NAME_CHARS_MAX],
        "operation": request.operation,
        "kind": request.kind[:_NAME_CHARS_MAX],
        "object": _object_of(request),
        "dry_run": request.dry_run,
        "ms": round(seconds * 1e3, 3),
    }


def _write(line: dict[str, object], *, allowed: bool) -> None:
    text = "review allowed" if allowed else "review denied"
    _LOG.info(text, extra={"fields": line})


def _object_of(request: Request) -> str:
    """Return namespace/name; the name is empty if the API server will generate it."""
    parts = (request.namespace, request.name) if request.namespace else (request.name,)
    return "/".join(part[:_NAME_CHARS_MAX] for part in parts)


def _has_run(response: PolicyResponse) -> bool:
    """Return whether any rule of the policy applied to the object."""
    return bool(response.passed or response.results)


def _has_failed(response: PolicyResponse) -> bool:
    return any(rule_result.status in (FAIL, ERROR) for rule_result in response.results)


def _names(responses: Iterable[PolicyResponse]) -> str:
    """Return the policies' names, separated by commas."""
    names = list(dict.fromkeys(response.policy.key for response in responses))
    shown = ",".join(names[:_POLICIES_MAX])
    more = len(names) - _POLICIES_MAX
    return f"{shown} and {more} more" if more > 0 else shown
