"""Compare a ClusterPolicy and its ValidatingPolicy on the same requests.

Room: cli. Takes: both documents, AdmissionReviews. Gives: the requests that the two
policies decide differently. Next: cli/fix/command.py. May touch: the clock, for
deadlines.
Source: docs/architecture.md 3 (the webhook uses the same engine).
"""

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kyverno_mp.admission.decode import decode
from kyverno_mp.cli.replay.unrecorded import unrecorded
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.cel_kinds.validating_policy import compile_validating_policy
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    decode_validating_policy,
)
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.program.engine import Clock, Engine, link_policy
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, RuleResult
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.scope import Facts, ReviewShared
from kyverno_mp.values.jsonvalue import Json

_DENIED: Final = frozenset({FAIL, ERROR})
_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Difference(NamedTuple):
    """One request, and the decisions of both policies."""

    request: str
    before: str
    after: str


class _NoLabels:
    """Namespaces without labels."""

    def labels(self, _namespace: str) -> dict[str, str]:
        """Return no labels."""
        return {}


class Pair:
    """Both policies, linked for evaluation."""

    def __init__(self, before: ClusterPolicy, after: Json) -> None:
        self._engine = Engine(
            unrecorded(lambda _what: None, _NoLabels(), lambda _what: None),
            Clock(now=lambda: _TIME, monotonic_ns=time.monotonic_ns),
        )
        self._before = link_policy(compile_policy(before))
        # KYVERNO: failurePolicy Ignore allows errors of a ClusterPolicy's rules, but
        # not errors of a ValidatingPolicy's expressions.
        ignores = before.spec.failure_policy == "Ignore"
        self._denied_before = _DENIED - {ERROR} if ignores else _DENIED
        decoded = decode_validating_policy(after)
        assert not isinstance(decoded, CelPolicyException)
        self._after = LinkedValidatingPolicy(compile_validating_policy(decoded))

    def differences(self, reviews: Iterable[tuple[str, bytes]]) -> Iterator[Difference]:
        """Yield the requests that one policy denies and the other allows."""
        for shown, body in reviews:
            before, after = self.verdicts(decode(body))
            if bool(before) != bool(after):
                yield Difference(shown, before, after)

    def verdicts(self, request: Request) -> tuple[str, str]:
        """Return the reason of each policy's denial, "" if it allows the request."""
        context = self._engine.open(request)
        response = self._engine.explain(self._before, context)
        shared = ReviewShared(request)
        facts = Facts(
            request,
            self._engine.open(request).runtime,
            self._engine.cluster_data.cel,
            is_review=True,
            faults=[],
        )
        found = self._after.evaluate(facts, shared)
        answers = [one.result for one in found if one.result is not None]
        return _why(response.results, self._denied_before), _why(answers, _DENIED)


def _why(results: Iterable[RuleResult], denied: frozenset[str]) -> str:
    bad = (result for result in results if result.status in denied)
    return "; ".join(f"{one.status}: {one.message}" for one in bad)
