"""Define the results of a rule and of a policy.

Room: program. Gives: RuleResult and PolicyResponse, read by admission.encode, cli,
reports.
Source: docs/behaviour/engine 0.4, 8.1; Kyverno pkg/engine/api/rulestatus.go.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from kyverno_mp.errors import Error
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.values.jsonvalue import Json

PASS: Final = "pass"  # noqa: S105 - a status
FAIL: Final = "fail"
WARNING: Final = "warning"
ERROR: Final = "error"
SKIP: Final = "skip"

VALIDATION: Final = "Validation"
MUTATION: Final = "Mutation"
GENERATION: Final = "Generation"
DELETION: Final = "Deletion"
IMAGE_VERIFY: Final = "ImageVerify"
_TYPES: Final = {
    "mutate": MUTATION,
    "generate": GENERATION,
    "verifyImages": IMAGE_VERIFY,
}


@dataclass(slots=True)
class RuleResult:
    """The result of one rule for one object; ``status`` is one of the five above."""

    rule: str
    rule_type: str
    status: str
    message: str
    properties: dict[str, str] = field(default_factory=dict)
    exceptions: tuple[str, ...] = ()
    """Keys (``ns/name``) of the PolicyExceptions that caused the skip."""
    patched_target: dict[str, Json] | None = None
    """The object that a mutate-existing rule changed."""
    generated: tuple[dict[str, Json], ...] = ()
    """The objects that a generate rule created."""
    warns: bool = False
    """The user gets a warning, regardless of the status."""
    reasons: tuple[str, ...] = ()
    """Reasons why attestors of an ImageValidatingPolicy were rejected."""
    code: str = ""
    """The code of the error that caused an error result, "" if it has none."""
    validation: int = -1
    """The index of the validation of a ValidatingPolicy that failed, -1: none."""


@dataclass(slots=True)
class PolicyResponse:
    """All results of one policy on one object, in rule order.

    ``action`` is the effective failure action of the response ("Enforce" or "Audit",
    docs/behaviour/engine 6.9). ``passed`` and ``skipped`` name the rules that the fast
    program decided without explaining; ``results`` then contains only the other rules.
    Requests may share the responses of a batch (program/plans/batch.py), so responses
    and their results are read-only.
    """

    policy: PolicyIR
    results: list[RuleResult] = field(default_factory=list)
    action: str = "Audit"
    passed: tuple[str, ...] = ()
    """Rules that passed in the fast program and have no entry in ``results``."""
    skipped: tuple[str, ...] = ()
    patched_object: dict[str, Json] | None = None
    is_relaxed: bool = False
    """The policy is enforced gradually, and not yet for this object."""

    def failed(self) -> bool:
        """Return whether any rule failed."""
        return any(r.status == FAIL for r in self.results)

    def errored(self) -> bool:
        """Return whether any rule ended in an error."""
        # PERF: called for every mutating policy; a generator would add a call.
        for rule_result in self.results:  # noqa: SIM110 - as above
            if rule_result.status == ERROR:
                return True
        return False


class SharedResponses(tuple[PolicyResponse, ...]):  # noqa: SLOT001 - cannot have any
    """The responses of all requests with one outcome, in policy order.

    ``derived``: what readers compute from the responses, by key; a few small values
    without a reference to this object. They are freed with it, while a cache elsewhere
    would keep the policies of replaced snapshots. ``outcome``: the outcome in keys of
    caches that live longer; a plain object, so it keeps no policies alive.
    """

    derived: dict[Hashable, Any]
    outcome: object

    def __init__(self, _responses: Iterable[PolicyResponse] = ()) -> None:
        self.derived = {}
        self.outcome = object()


def not_evaluated(rule: RuleIR, error: Exception) -> RuleResult:
    """Return the error of a rule that could not be evaluated.

    Clients see the message, so it omits an internal error's text, which may contain a
    value.
    """
    code, reason = "webhook.defect", "internal error, see the log"
    if isinstance(error, Error):
        code, reason = error.code, error.message
    message = f"not evaluated ({code}): {reason}"
    kind = _TYPES.get(rule.rule_type, VALIDATION)
    return RuleResult(rule.name, kind, status=ERROR, message=message, code=code)
