"""Tell an outage of the API server from a failure of a single call.

Room: background. Takes: errors of calls and of rules. Gives: OUTAGES, ``is_outage``,
``is_rejection``. Next: background/runner.py, background/refusals.py.
Source: docs/background.md (requests).

An outage stops all work and counts as no attempt. A rule that exceeds its time and a
webhook of others that does not answer look similar, but concern only one task: without
a number of attempts, it would be repeated for ever and delay the others.
"""

from typing import Final

from kyverno_mp.errors import (
    DeadlinePassed,
    Error,
    KubeExpired,
    KubeNotFound,
    KubeRefused,
    KubeUnavailable,
    SnapshotUnusable,
)
from kyverno_mp.kube.translate import is_failed_webhook

OUTAGES: Final = (KubeUnavailable, DeadlinePassed, KubeExpired, SnapshotUnusable)
_OF_RULES: Final = frozenset({"expr.deadline", "egress.deadline", "egress.dry_runs"})
"""The codes of rules that exceed their time."""


def is_outage(error: Error) -> bool:
    """Return whether an error of these types concerns all tasks."""
    if isinstance(error, DeadlinePassed) and error.code in _OF_RULES:
        return False
    return isinstance(error, OUTAGES) and not is_failed_webhook(error)


def is_rejection(error: Error) -> bool:
    """Return whether the rest of the work is possible nevertheless."""
    return isinstance(error, KubeRefused | KubeNotFound) or is_failed_webhook(error)
