"""Put a worker's numbers into its metric page.

Room: webhook. Takes: what service tells. Gives: ports.Records. Next: telemetry.record.
May touch: the page of this process.
Source: spec/controllers.md 9.2 (names and label values).
"""

from collections.abc import Sequence
from typing import Final

from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.webhook.route import MUTATE, VALIDATE

_WEBHOOK: Final = {
    VALIDATE: "ValidatingWebhookConfiguration",
    MUTATE: "MutatingWebhookConfiguration",
}
_LOWER: Final = {
    "CREATE": "create",
    "UPDATE": "update",
    "DELETE": "delete",
    "CONNECT": "connect",
}


class PageRecords:
    """Records into the page that ``recorder`` owns."""

    __slots__ = ("_admission", "_errors", "_http")

    def __init__(self, recorder: Recorder) -> None:
        self._admission = recorder.admission
        self._http = recorder.http
        self._errors = recorder.errors

    def review(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        """Count one answered review."""
        del responses
        labels = (
            request.kind,
            request.namespace,
            _LOWER[request.operation],
            "true" if allowed else "false",
            _WEBHOOK[webhook],
        )
        self._admission.observe(labels, seconds)

    def http(self, method: str, path: str, seconds: float) -> None:
        """Count one HTTP request."""
        self._http.observe((method, path), seconds)

    def error(self, code: str) -> None:
        """Count one error by its code."""
        self._errors.count((code,))
