"""Apply ValidatingPolicies to one object or JSON payload.

Room: cli. Takes: ValidatingPolicyIRs, values, a user. Gives: Verdicts. Next: evaluate.
May touch: the cluster and services, through the ports of CEL.
Source: docs/behaviour/cli 5 (REST mapper), 7, 8; docs/behaviour/cel 3, 6.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from kyverno_mp.cli.apply.stages.admission_policies import Verdict, asked_by
from kyverno_mp.cli.sources.plurals import Plurals, known_plurals, resource_of
from kyverno_mp.cli.sources.user_info import UserInfo
from kyverno_mp.cli.sources.values_file import Values
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.request import EMPTY_OBJECT, Request
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.ir.authorization import AuthorizationPolicyIR
    from kyverno_mp.ir.cel_policies import AnyCelPolicyIR
    from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
    from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy

NAME_LABEL: Final = "kubernetes.io/metadata.name"


class Payload(dict[str, Json]):
    """The content of a ``--json`` file: any map, not a Kubernetes object."""


class CelInput(msgspec.Struct, frozen=True):
    """The input of a run for policies in CEL."""

    policies: Sequence[ValidatingPolicyIR] = ()
    plurals: Plurals | None = None
    """Plural names of kinds besides the built-in ones."""
    others: "Sequence[AnyCelPolicyIR]" = ()
    """MutatingPolicies, GeneratingPolicies and DeletingPolicies."""
    targets: Sequence[dict[str, Json]] = ()
    """Existing objects that policies can change."""
    is_cluster: bool = False
    """Whether the run uses a real or simulated cluster."""
    images: "Sequence[ImageValidatingPolicyIR]" = ()
    """ImageValidatingPolicies."""
    uses_docker: bool = False
    """Whether to read registries with docker's credentials."""
    layout: str = ""
    """OCI image layout folder to read instead of registries."""
    definitions: Sequence[Json] = ()
    """CustomResourceDefinitions, which define the types of custom kinds."""
    is_target: bool = False
    """Whether each object of the run is itself an existing object to change."""
    authorization: "Sequence[AuthorizationPolicyIR]" = ()
    """Policies in the evaluation modes HTTP and Envoy."""
    payload_word: str = "json"
    """Word for a JSON payload in messages of DeletingPolicies."""


class CelPolicies:
    """Policies linked once, applied to many objects."""

    def __init__(
        self, inputs: CelInput, values: Values, user: UserInfo | None, ports: CelPorts
    ) -> None:
        self._for_objects: list[LinkedValidatingPolicy] = []
        self._for_json: list[LinkedValidatingPolicy] = []
        if inputs.policies:
            self._link(inputs.policies)
        self._ports = ports
        self._values = values
        self._user = user or UserInfo()
        self._plurals = known_plurals(inputs.plurals)
        self._constraints = [
            body.constraints
            for linked in self._for_objects
            for body in linked.ir.bodies
            if body.constraints is not None
        ]

    def _link(self, policies: Sequence[ValidatingPolicyIR]) -> None:
        # PERF: imports CEL, which runs without such policies do not need.
        from kyverno_mp.program.validating_policy.evaluate import (
            LinkedValidatingPolicy,
        )

        for ir in policies:
            linked = self._for_json if ir.is_json else self._for_objects
            linked.append(LinkedValidatingPolicy(ir))

    @property
    def validates(self) -> bool:
        """Return whether the run has a ValidatingPolicy."""
        return bool(self._for_objects or self._for_json)

    def validate(self, request: Request, runtime: Runtime) -> Iterator[Verdict]:
        """Yield the verdicts on an object.

        KYVERNO: policies in JSON mode get the object, too, after all other policies.
        """
        if self._for_objects:
            user_request = self._asked(request)
            namespace = namespace_of(user_request, self._values)
            yield from self._verdicts(
                self._for_objects, user_request, runtime, namespace=namespace
            )
        yield from self._on_json(request.object, runtime)

    def validate_payload(self, payload: Payload, runtime: Runtime) -> Iterator[Verdict]:
        """Yield the verdicts on a payload, which only policies in JSON mode get."""
        yield from self._on_json(dict(payload), runtime)

    def _on_json(self, content: dict[str, Json], runtime: Runtime) -> Iterator[Verdict]:
        if self._for_json:
            from kyverno_mp.program.payloads import validate_payload

            for judged in validate_payload(
                self._for_json, content, runtime, self._ports
            ):
                yield Verdict(judged.policy, judged.result)

    def _verdicts(
        self,
        policies: Sequence["LinkedValidatingPolicy"],
        request: Request,
        runtime: Runtime,
        *,
        namespace: Json = None,
    ) -> Iterator[Verdict]:
        from kyverno_mp.program.context.cel_scope import Shared
        from kyverno_mp.program.validating_policy.scope import Facts

        facts = Facts(request, runtime, self._ports, namespace)
        shared = Shared(request)
        for linked in policies:
            policy = linked.ir.policy
            runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
            for answer in linked.evaluate(facts, shared):
                if not answer.is_dropped:
                    yield Verdict(policy, answer.result)

    def _asked(self, request: Request) -> Request:
        """Return the request as upstream builds it: by the given user."""
        plural = resource_of(
            request, self._plurals, self._constraints, self._guessed(request.kind)
        )
        user_request = asked_by(self._user, request, plural)
        name = user_request.namespace
        if not user_request.namespace_labels and self._values.lacks_namespace(name):
            user_request = replace(user_request, namespace_labels={NAME_LABEL: name})
        return (
            user_request
            if user_request.old_object
            else replace(user_request, old_object=EMPTY_OBJECT)
        )

    def _guessed(self, kind: str) -> str:
        """Return the first matched resource whose name begins with the kind.

        KYVERNO: docs/behaviour/cli 5, for kinds that the REST mapper does not know.
        """
        for linked in self._for_objects:
            constraints = linked.ir.bodies[0].constraints
            for rule in constraints.rules if constraints is not None else ():
                for resource in rule.resources:
                    if resource.lower().startswith(kind.lower()):
                        return resource
        return ""


def namespace_of(request: Request, values: Values) -> Json:
    """Return the variable ``namespaceObject``: None for an unknown namespace."""
    name = request.namespace
    namespace_object = values.namespace_objects.get(name)
    if namespace_object is not None:
        return {"spec": {}, "status": {}, **namespace_object}
    labels = request.namespace_labels
    if not name or (labels == {NAME_LABEL: name} and values.lacks_namespace(name)):
        return None
    metadata: dict[str, Json] = {"name": name}
    if labels:
        metadata["labels"] = dict(labels)
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": metadata,
        "spec": {},
        "status": {},
    }
