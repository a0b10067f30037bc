"""Decide whether a clean-up policy would delete an object.

Room: program. Takes: CleanupIR linked once; a Request built from the object, its
context.
Gives: RuleResult of type Deletion. Next: cli/apply/evaluate, the clean-up pool.
May touch: the cluster data only through program/ports.py.
Source: docs/behaviour/controllers 7; docs/behaviour/cli 13.
"""

from typing import Final

from kyverno_mp.errors import InputError
from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.ir.cleanup import CleanupIR
from kyverno_mp.program import result
from kyverno_mp.program.context.entries import link_entries
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.matching.match import link_match
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult

_MATCHED: Final = "resource matched"
_NOT_MATCHED: Final = "resource did not match"


class LinkedCleanup:
    """One linked clean-up policy."""

    __slots__ = ("_conditions", "_entries", "_excludes", "_matches", "ir")

    def __init__(self, ir: CleanupIR) -> None:
        self.ir = ir
        self._matches = link_match(ir.match, None, for_exception=True).matches
        self._excludes = (
            None
            if ir.exclude is None
            else link_match(ir.exclude, None, for_exception=True).matches
        )
        self._entries = (
            link_entries(ir.context, ir.policy.namespace) if ir.context else None
        )
        self._conditions = (
            None if ir.conditions is None else link_conditions(ir.conditions)
        )

    def evaluate(self, context: RequestContext) -> RuleResult:
        """Return pass (delete the object), fail (keep it) or error (undecided)."""
        try:
            deletes = self.selects(context.request) and self.holds(context)
        except InputError as error:
            return self._result(result.ERROR, error.message)
        if deletes:
            return self._result(result.PASS, _MATCHED)
        return self._result(result.FAIL, _NOT_MATCHED)

    def selects(self, request: Request) -> bool:
        """Return whether match and exclude select the object. Raises: InputError."""
        namespace = self.ir.policy.namespace
        object_namespace = metadata_of(request.object).get("namespace", "")
        if namespace and object_namespace != namespace:
            return False
        if not self._matches(request):
            return False
        return self._excludes is None or not self._excludes(request)

    def holds(self, context: RequestContext) -> bool:
        """Evaluate the conditions on ``target``, ``images`` and the namespace.

        Raises: InputError.
        """
        if self._conditions is None:
            return True
        target = context.request.object
        scope = context.rule_scope(policy_namespace=self.ir.policy.namespace)
        namespace = metadata_of(target).get("namespace", "")
        scope.root = {"target": target, "request": {"namespace": namespace}}
        if self._entries is not None:
            scope.add_entries(self._entries)
        return self._conditions.holds(scope)

    def _result(self, status: str, message: str) -> RuleResult:
        name = self.ir.policy.name
        return RuleResult(name, result.DELETION, status, message)
