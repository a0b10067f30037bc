"""Take the results of audited reviews: a log line for each violation, and metrics.

Room: webhook. Takes: responses of allowed reviews, in the outbox's thread. Gives:
nothing back. Next: start wires it; reports replace it where there is a cluster.
May touch: the log, this process's metric page.
Source: spec/controllers.md 2.7 (audit aside), 2.10.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PolicyResponse
from kyverno_mp.webhook.ports import Records
from kyverno_mp.webhook.route import VALIDATE

_LOG = logging.getLogger(__name__)
_SECRET = "Secret"  # noqa: S105 - the name of a kind


class LogSink:
    """Tells the log of what audit policies found; messages only, never the object."""

    def __init__(self, records: Records, loop: asyncio.AbstractEventLoop) -> None:
        self._records = records
        self._loop = loop

    def deliver(
        self,
        request: Request,
        enforced: Sequence[PolicyResponse],
        audited: Sequence[PolicyResponse],
    ) -> None:
        """Log each violation and error of the audited policies, and count them.

        The enforced ones were counted with the answer.
        """
        del enforced
        if audited:
            # SAFETY: the metric page has one writer, the event loop's thread.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(
                    self._records.audit, request, VALIDATE, audited
                )
        for response in audited:
            for rule in response.results:
                if rule.status not in (FAIL, ERROR):
                    continue
                fields = {
                    "policy": response.policy.key,
                    "rule": rule.rule,
                    "result": rule.status,
                    "kind": request.kind,
                    "namespace": request.namespace,
                    "name": request.name,
                    "uid": request.uid,
                }
                if request.kind != _SECRET:
                    # A message may quote values of the object (engine.md 5.6).
                    fields["reason"] = rule.message
                _LOG.info("audit", extra={"fields": fields})
