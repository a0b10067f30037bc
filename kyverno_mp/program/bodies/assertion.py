"""Evaluate ``validate.assert`` on a request.

Room: program. Takes: the Assertion of one rule. Gives: fast codes and Outcomes.
Next: program/rule.py.
Source: docs/behaviour/engine 6.7: each violation is a separate outcome.
"""

from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.assertion.gotypes import (
    GoMap,
    GoString,
    GoStrings,
    GoStruct,
    NilMap,
)
from kyverno_mp.expr.assertion.link import link_assertion
from kyverno_mp.expr.assertion.nodes import Assertion
from kyverno_mp.expr.assertion.words import EXTRA_VALUE
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import EXPLAIN, PASSED, Outcome
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json

_INFO_TAGS: Final = ("roles?", "clusterRoles?", "userInfo", "synchronize?")
_USER_TAGS: Final = ("username?", "uid?", "groups?", "extra?")
_RESOURCE_TAGS: Final = ("group", "version", "resource")


def payload_of(request: Request) -> dict[str, Json]:
    """Return the value to which the assertion tree is applied."""
    review = request.review_request or {}
    # KYVERNO: a CLI run is not an admission and has no resource, even if values and
    # user info are given.
    admission = request.ints_are_numbers
    resource = review.get("resource") if admission else None
    return {
        "object": request.object or NilMap(),
        "oldObject": request.old_object or NilMap(),
        "admissionInfo": _admission_info(request, review),
        "operation": GoString(request.operation),
        "namespaceLabels": GoMap(dict(request.namespace_labels), "map[string]string"),
        "admissionOperation": admission and request.has_user_info,
        "requestResource": _request_resource(resource or {}),
        "resourceKind": {
            "group": request.group,
            "version": request.version,
            "kind": request.kind,
            "subResource": request.subresource,
        },
    }


def _admission_info(request: Request, review: dict[str, Json]) -> GoStruct:
    user = (review.get("userInfo") or {}) if request.has_user_info else {}
    extra = {
        str(key): GoStrings([str(value) for value in values or ()], EXTRA_VALUE)
        for key, values in (user.get("extra") or {}).items()
    }
    members = {
        "Username": request.username,
        "UID": str(user.get("uid") or ""),
        "Groups": GoStrings(list(request.groups)),
        "Extra": GoMap(extra, f"map[string]{EXTRA_VALUE}"),
    }
    info = {
        "Roles": GoStrings(list(request.roles)),
        "ClusterRoles": GoStrings(list(request.cluster_roles)),
        "AdmissionUserInfo": GoStruct("v1.UserInfo", members, _USER_TAGS),
        "DryRun": False,
    }
    return GoStruct("v2.RequestInfo", info, _INFO_TAGS)


def _request_resource(resource: dict[str, Json]) -> GoStruct:
    members = {name.title(): str(resource.get(name) or "") for name in _RESOURCE_TAGS}
    return GoStruct("v1.GroupVersionResource", members, _RESOURCE_TAGS, comparable=True)


class AssertionBody:
    """``validate.assert`` of one rule."""

    def __init__(self, rule: str, assertion: Assertion) -> None:
        self._rule = rule
        self._program = link_assertion(assertion)

    def fast(self, scope: RuleContext, _target: Json) -> int:
        """Return whether there are no violations."""
        violations = self._program.evaluate(payload_of(scope.shared.request), scope)
        return EXPLAIN if violations else PASSED

    def explain(self, scope: RuleContext, _target: Json) -> list[Outcome]:
        """Return one failure per violation, a pass, or an error."""
        try:
            violations = self._program.evaluate(payload_of(scope.shared.request), scope)
        except ExpressionFailed as error:
            message = f"failed to apply assertion: {error.message}"
            return [Outcome(result.ERROR, message, code=error.code)]
        if not violations:
            return [Outcome(result.PASS, f"Validation rule '{self._rule}' passed.")]
        return [Outcome(result.FAIL, violation.message) for violation in violations]
