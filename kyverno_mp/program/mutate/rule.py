"""Run one mutate rule on one request: the object itself, or existing targets.

Room: program.mutate. Takes: RuleIR linked once; Request and RuleContext per review.
Gives: RuleResults and the object after the rule. Next: program/mutation.
An InputError becomes the rule's error status.
Source: docs/behaviour/engine 0.5, 7.
"""

from typing import Final

from kyverno_mp.errors import InputError
from kyverno_mp.ir.rules import MutateIR, PolicyIR, RuleIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import Outcome
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.matching.match import reads_namespace_labels
from kyverno_mp.program.mutate.foreach import ForEach
from kyverno_mp.program.mutate.patch import LinkedPatch, Patched, failed
from kyverno_mp.program.mutate.row import Frame
from kyverno_mp.program.mutate.targets import LinkedTarget
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.rule_gate import RuleGate, excepted, refused_by
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.spending import Spender

_NO_CLIENT: Final = (
    "failed to instantiate handler: Handler factory requires a client but a nil client"
    " was passed, likely due to a bug or unsupported operation."
)


class LinkedMutation:
    """One linked mutate rule."""

    __slots__ = (
        "_body",
        "_gate",
        "_plain",
        "_targets",
        "has_exceptions",
        "ir",
        "is_existing",
        "matches",
        "policy",
        "reads_namespace_labels",
    )

    def __init__(self, policy: PolicyIR, ir: RuleIR) -> None:
        self.policy = policy
        self.ir = ir
        self._gate = RuleGate(policy, ir)
        self.matches = self._gate.matches
        self.reads_namespace_labels = reads_namespace_labels(ir.match, ir.exclude)
        mutate = ir.mutate or MutateIR()
        self._body: LinkedPatch | ForEach | None = None
        if mutate.foreach is not None:
            self._body = ForEach(mutate.foreach, policy.namespace)
        elif mutate.patch is not None:
            self._body = LinkedPatch(mutate.patch)
        self._targets = (
            None
            if mutate.targets is None
            else [LinkedTarget(each, policy.namespace) for each in mutate.targets]
        )

        self.has_exceptions = bool(self._gate.exceptions)
        """Whether any PolicyException names the rule."""
        self.is_existing = self._targets is not None
        """Whether the rule changes existing targets instead of the trigger."""
        self._plain: LinkedPatch | ForEach | None = None
        """The body, if the rule consists of nothing else and may not need a scope."""
        more = ir.unsupported or ir.exceptions or ir.report_properties
        if not (more or self.is_existing) and self._gate.is_open:
            body = self._body
            self._plain = body if body is not None and body.is_plain else None

    def run_plain(
        self, frame: Frame, resource: dict[str, Json], spend: Spender
    ) -> tuple[RuleResult, dict[str, Json]] | None:
        """Run without a scope; None if one is needed.

        PERF: few rules need a scope, and it costs as much as the patch.
        """
        body = self._plain
        if body is None:
            return None
        try:
            patched = body.apply_plain(frame, resource, spend)
        except InputError as error:
            patched = failed(error.message)
        if patched is None:
            return None
        message = _message(patched)
        rule_result = RuleResult(self.ir.name, result.MUTATION, patched.status, message)
        return rule_result, patched.resource

    @property
    def is_plain(self) -> bool:
        """Whether ``run_linked`` can be used."""
        return self._plain is not None

    @property
    def patches(self) -> list[tuple[LinkedPatch | None, list[str] | None]]:
        """The patches of a plain rule; for a foreach, with the paths of the lists."""
        body = self._plain
        return body.patches if isinstance(body, ForEach) else [(body, None)]

    def run_linked(
        self, frame: Frame, resource: dict[str, Json], spend: Spender
    ) -> Patched | None:
        """Run with linked patches only; None if the general algorithm is needed.

        Linked patches read only the fields that program/recall/mutation_reads marks.
        Raises: InputError.
        """
        assert self._plain is not None
        return self._plain.apply_linked(frame, resource, spend)

    def run(
        self, request: Request, scope: RuleContext, resource: dict[str, Json]
    ) -> tuple[list[RuleResult], dict[str, Json]]:
        """Return the results and the resulting object of a matching rule.

        ``request`` is used for exceptions; it has the object from before the policy.
        KYVERNO: after an error the resulting object is empty
        (docs/behaviour/engine 7.2).
        """
        if self.ir.unsupported:
            message = f"{self.ir.unsupported} is not evaluated by this version"
            return [self._result(scope, Outcome(result.ERROR, message))], resource
        if self._targets is not None and scope.cluster_data.objects is None:
            return [self._result(scope, Outcome(result.ERROR, _NO_CLIENT))], resource
        refused = self._gate.refusal(scope)
        if refused is not None:
            return [self._result(scope, refused)], resource
        matched = (
            self._gate.matched_exceptions(request, scope) if self.has_exceptions else []
        )
        if matched:
            rule_result = self._result(scope, excepted(matched))
            rule_result.exceptions = tuple(ir.key for ir in matched)
            return [rule_result], resource
        if self._targets is not None:
            return self._existing(scope, self._targets), resource
        patched = self._apply(scope, resource)
        outcome = Outcome(patched.status, _message(patched))
        return [self._result(scope, outcome)], patched.resource

    def _apply(self, scope: RuleContext, resource: dict[str, Json]) -> Patched:
        if self._body is None:
            return failed("empty mutate rule")
        try:
            return self._body.apply(scope, resource)
        except InputError as error:
            return failed(error.message)

    def _existing(
        self, scope: RuleContext, targets: list[LinkedTarget]
    ) -> list[RuleResult]:
        """Patch every target; add an error for a target that cannot be loaded."""
        chosen: list[tuple[LinkedTarget, dict[str, Json]]] = []
        problems: list[str] = []
        assert scope.cluster_data.objects is not None
        for index, target in enumerate(targets):
            try:
                resources = target.objects(scope, scope.cluster_data.objects, index)
            except InputError as error:
                problems.append(error.message)
                continue
            chosen.extend((target, resource) for resource in resources)
        results = []
        if problems:
            # KYVERNO: the message has no text before the colon (docs/behaviour/engine
            # 7.6).
            outcome = Outcome(result.ERROR, ": " + "; ".join(problems))
            results.append(self._result(scope, outcome))
        results += [self._target(scope, *each) for each in chosen]
        return results

    def _target(
        self, scope: RuleContext, target: LinkedTarget, resource: dict[str, Json]
    ) -> RuleResult:
        # KYVERNO: targets share one context, so an entry loaded for one target stays
        # loaded.
        scope.root = {**scope.root, "target": resource}
        if target.context is not None:
            try:
                scope.add_entries(target.context)
            except InputError as error:
                message = f"failed to load context: {error.message}"
                return self._result(
                    scope, Outcome(result.ERROR, message, code=error.code)
                )
        if target.test is not None:
            refused = refused_by(target.test, scope)
            if refused is not None:
                return self._result(scope, refused)
        patched = self._apply(scope, resource)
        rule_result = self._result(scope, Outcome(patched.status, _message(patched)))
        if patched.status == result.PASS:
            rule_result.patched_target = patched.resource
        return rule_result

    def _result(self, scope: RuleContext, outcome: Outcome) -> RuleResult:
        return RuleResult(
            rule=self.ir.name,
            rule_type=result.MUTATION,
            status=outcome.status,
            message=outcome.message,
            properties=self._gate.report_properties(scope),
            code=outcome.code,
        )


def _message(patched: Patched) -> str:
    if patched.status != result.PASS:
        return patched.message
    return mutated_text(patched.resource)


def mutated_text(resource: dict[str, Json]) -> str:
    """Return the message of a rule that changed the object."""
    metadata = resource.get("metadata")
    # A patch may have replaced a name with a value that is not a string.
    name = namespace = None
    if type(metadata) is dict:
        name, namespace = metadata.get("name"), metadata.get("namespace")
    message = f"mutated {resource.get('kind', '')}/{name if type(name) is str else ''}"
    if type(namespace) is str and namespace:
        return f"{message} in namespace {namespace}"
    return message
