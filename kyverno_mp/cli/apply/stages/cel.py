"""Apply MutatingPolicies, GeneratingPolicies and DeletingPolicies to one object.

Room: cli. Takes: their IR, values, a user, the targets. Gives: Verdicts. Next:
evaluate. May touch: the cluster and services, through the ports of CEL.
Source: docs/behaviour/cli 7, 8; docs/behaviour/cel 10, 12d; Kyverno
cmd/cli/kubectl-kyverno/processor/policy_processor.go.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from kyverno_mp.cli.apply.stages.admission_policies import Verdict, asked_by
from kyverno_mp.cli.apply.stages.cel_policies import NAME_LABEL, CelInput, namespace_of
from kyverno_mp.cli.cluster.given_cel import GeneratedObjects, GivenResources
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.plurals import known_plurals, resource_of
from kyverno_mp.cli.sources.user_info import UserInfo
from kyverno_mp.cli.sources.values_file import Values
from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, InputError
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.cel_policies import (
    DeletingPolicyIR,
    GeneratingPolicyIR,
    MutatingPolicyIR,
)
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.cel_policies.delete import LinkedDeletingPolicy, any_operation
from kyverno_mp.program.cel_policies.generate import LinkedGeneratingPolicy
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy, Mutated
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.request import EMPTY_OBJECT, Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.typed.custom import types_of_definitions
from kyverno_mp.values.typed.schema import Schemas

_NO_OPERATION: Final = ""


def generator_of(ir: GeneratingPolicyIR) -> Callable[[Facts], list[dict[str, Json]]]:
    """Link a policy; the function returns what it creates, also before an error."""
    linked = LinkedGeneratingPolicy(ir)
    created = GeneratedObjects(is_cluster=True)

    def generate(facts: Facts) -> list[dict[str, Json]]:
        facts = facts._replace(ports=facts.ports._replace(generator=created))
        linked.evaluate(facts, Shared(facts.request))
        return created.take()

    return generate


class CelStages:
    """Policies linked once, applied to many objects."""

    def __init__(
        self, inputs: CelInput, values: Values, user: UserInfo | None, ports: CelPorts
    ) -> None:
        self._defined: Schemas | None = None
        self._mutating: list[LinkedMutatingPolicy] = []
        self._of_targets: list[LinkedMutatingPolicy] = []
        self._generating: list[LinkedGeneratingPolicy] = []
        self._deleting: list[LinkedDeletingPolicy] = []
        for ir in inputs.others:
            if isinstance(ir, MutatingPolicyIR):
                linked = self._of_targets if ir.mutates_existing else self._mutating
                linked.append(LinkedMutatingPolicy(ir, self._types(inputs)))
            elif isinstance(ir, GeneratingPolicyIR):
                self._generating.append(LinkedGeneratingPolicy(ir))
            elif isinstance(ir, DeletingPolicyIR):
                # KYVERNO: exclusions are matched with an empty operation, which only
                # ``*`` matches.
                linked_one = LinkedDeletingPolicy(ir, excludes_any=False)
                self._deleting.append(linked_one)
        self._generated = GeneratedObjects(is_cluster=inputs.is_cluster)
        self._ports = ports._replace(generator=self._generated)
        self._target_ports = self._ports
        if inputs.targets and isinstance(ports.resources, GivenResources):
            resources = ports.resources.with_objects(inputs.targets)
            self._target_ports = self._ports._replace(resources=resources)
        self._values = values
        self._user = user or UserInfo()
        self._plurals = known_plurals(inputs.plurals)
        self._targets = inputs.targets
        self._is_target = inputs.is_target

    def _types(self, cel_input: CelInput) -> Schemas | None:
        """Return the types of the CustomResourceDefinitions, None without any."""
        if cel_input.definitions and self._defined is None:
            try:
                self._defined = types_of_definitions(list(cel_input.definitions))
            except (InputError, KeyError, TypeError, AttributeError) as error:
                message = f"a CustomResourceDefinition is invalid: {error}"
                raise CommandFailed(message) from error
        return self._defined

    def mutate(self, request: Request, runtime: Runtime) -> Iterator[Verdict]:
        """Yield the verdicts of MutatingPolicies on the object of the request.

        KYVERNO: every verdict has the object after the last policy (docs/behaviour/cel
        10.1).
        """
        if not self._mutating:
            return
        user_request = self._asked(request, _of_bodies(self._mutating))
        facts = self._facts(user_request, runtime)
        shared = Shared(facts.request)
        answers: list[tuple[LinkedMutatingPolicy, Mutated]] = []
        current = facts
        for linked in self._mutating:
            policy = linked.ir.policy
            runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
            for answer in linked.evaluate(current, shared):
                answers.append((linked, answer))
                if answer.patched is not None:
                    user_request = replace(facts.request, object=answer.patched)
                    current = facts._replace(request=user_request)
        for linked, answer in answers:
            if not answer.is_dropped:
                yield Verdict(linked.ir.policy, answer.result, current.request.object)

    def mutate_targets(self, request: Request, runtime: Runtime) -> Iterator[Verdict]:
        """Yield the verdicts of mutate-existing policies, one per target.

        KYVERNO: the request does not have to match the policy (docs/behaviour/cli 8).
        """
        targets = [request.object] if self._is_target else self._targets
        if not (self._of_targets and targets):
            return
        trigger = self._asked(request, _of_bodies(self._of_targets))
        facts = self._facts(trigger, runtime)._replace(ports=self._target_ports)
        shared = Shared(trigger)
        targets_by_policy = {
            id(linked): self._found_targets(linked, facts)
            for linked in self._of_targets
        }
        for raw in targets:
            target = self._target_request(raw, trigger)
            current = facts._replace(request=target, namespace=None, trigger=trigger)
            answers: list[tuple[LinkedMutatingPolicy, Mutated]] = []
            for linked in self._of_targets:
                if not _selects(linked, target, targets_by_policy[id(linked)]):
                    continue
                runtime.begin_policy(linked, is_tenant=False)
                for answer in linked.mutate_target(current, shared):
                    answers.append((linked, answer))
                    if answer.patched is not None:
                        patched_request = replace(target, object=answer.patched)
                        current = current._replace(request=patched_request)
            for linked, answer in answers:
                verdict = answer.result
                if verdict is not None:
                    if verdict.status == result.PASS:
                        verdict.patched_target = current.request.object
                    yield Verdict(linked.ir.policy, verdict)

    def generate(self, request: Request, runtime: Runtime) -> Iterator[Verdict]:
        """Yield the verdicts of GeneratingPolicies, with the generated objects."""
        if not self._generating:
            return
        user_request = self._asked(request, _of_policies(self._generating))
        facts = self._facts(user_request, runtime)
        shared = Shared(facts.request)
        for linked in self._generating:
            policy = linked.ir.policy
            runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
            verdict = linked.evaluate(facts, shared)
            generated = self._generated.take()
            if verdict is not None:
                if verdict.rule != "exception" and verdict.status == result.PASS:
                    verdict.generated = tuple(generated)
                yield Verdict(policy, verdict)

    def delete(
        self, request: Request, runtime: Runtime, noun: str = "resource"
    ) -> Iterator[Verdict]:
        """Yield the verdicts of DeletingPolicies; messages call the object ``noun``."""
        if not self._deleting:
            return
        user_request = request
        if request.object.get("apiVersion") and request.object.get("kind"):
            user_request = self._asked(request, _of_policies(self._deleting))
            user_request = replace(user_request, old_object={})
        facts = self._facts(user_request, runtime)
        for linked in self._deleting:
            policy = linked.ir.policy
            runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
            try:
                if not linked.matches(facts.request):
                    continue  # As in 1.19, and as for the other kinds.
                is_match = linked.holds(facts)
            except (ExpressionFailed, BudgetExceeded) as error:
                status, message = result.ERROR, error.message
            else:
                status = result.PASS if is_match else result.FAIL
                message = f"{noun} matched" if is_match else f"{noun} did not match"
            rule_result = RuleResult(policy.name, result.DELETION, status, message)
            yield Verdict(policy, rule_result)

    def _facts(self, request: Request, runtime: Runtime) -> Facts:
        namespace = namespace_of(request, self._values)
        return Facts(request, runtime, self._ports, namespace)

    def _asked(
        self, request: Request, constraints: Iterable[ConstraintsIR | None]
    ) -> Request:
        """Return the request as upstream builds it: by the given user."""
        plural = resource_of(request, self._plurals, constraints)
        user_request = asked_by(self._user, request, plural)
        name = user_request.namespace
        if not user_request.namespace_labels and self._values.lacks_namespace(name):
            user_request = replace(user_request, namespace_labels={NAME_LABEL: name})
        return (
            user_request
            if user_request.old_object
            else replace(user_request, old_object=EMPTY_OBJECT)
        )

    def _target_request(self, raw: dict[str, Json], trigger: Request) -> Request:
        """Return the request for an existing object, without an operation."""
        group, _, version = str(raw.get("apiVersion", "")).rpartition("/")
        kind, namespace = str(raw.get("kind", "")), metadata_text(raw, "namespace")
        target = replace(
            trigger,
            group=group,
            version=version,
            kind=kind,
            name=metadata_text(raw, "name"),
            namespace=namespace,
            object=raw,
            old_object={},
            operation=_NO_OPERATION,
            namespace_labels={NAME_LABEL: namespace} if namespace else {},
        )
        constraints = [_target_constraints(linked) for linked in self._of_targets]
        plural = resource_of(target, self._plurals, constraints)
        resource = {"group": group, "version": version, "resource": plural}
        return replace(target, review_request={"resource": resource})

    def _found_targets(
        self, linked: LinkedMutatingPolicy, facts: Facts
    ) -> set[tuple[str, str]] | None:
        """Return (namespace, name) of each target that the expression selects."""
        name = linked.ir.policy.name
        try:
            targets = linked.targets(facts)
        except (ExpressionFailed, BudgetExceeded) as error:
            message = (
                "failed to discover CEL targets: failed to evaluate CEL expression"
            )
            raise CommandFailed(
                f"{message} for policy {name}: {error.message}"
            ) from error
        if targets is None:
            return None
        return {
            (metadata_text(target, "namespace"), metadata_text(target, "name"))
            for target in targets
        }


def _selects(
    linked: LinkedMutatingPolicy,
    target: Request,
    targets: set[tuple[str, str]] | None,
) -> bool:
    """Return whether the policy selects the target."""
    if targets is not None:
        return (target.namespace, target.name) in targets
    return matches(any_operation(_target_constraints(linked)), target)


def _target_constraints(linked: LinkedMutatingPolicy) -> ConstraintsIR | None:
    targets = linked.ir.targets
    if targets is not None and targets.constraints.rules:
        return targets.constraints
    return linked.ir.bodies[0].constraints


def _of_bodies(
    policies: Iterable[LinkedMutatingPolicy],
) -> list[ConstraintsIR | None]:
    return [body.constraints for linked in policies for body in linked.ir.bodies]


def _of_policies(
    policies: Iterable[LinkedGeneratingPolicy | LinkedDeletingPolicy],
) -> list[ConstraintsIR | None]:
    """Return the constraints; a policy without any matches no object."""
    constraints = [linked.ir.constraints for linked in policies]
    return [each for each in constraints if each is not None]
