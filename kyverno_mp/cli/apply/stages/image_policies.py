"""Apply ImageValidatingPolicies to one object or JSON payload.

Room: cli. Takes: their IR, values, a user. Gives: Verdicts. Next: evaluate.
May touch: registries, and what the ports of CEL reach.
Source: docs/behaviour/cel 10.4; Kyverno
cmd/cli/kubectl-kyverno/commands/apply/command.go (applyImageValidatingPolicies).
"""

from collections.abc import Iterator
from dataclasses import replace

from kyverno_mp.cli.apply.stages.admission_policies import (
    Verdict,
    asked_by,
    unknown_kind,
)
from kyverno_mp.cli.apply.stages.cel_policies import NAME_LABEL, CelInput, namespace_of
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.plurals import known_plurals
from kyverno_mp.cli.sources.user_info import UserInfo
from kyverno_mp.cli.sources.values_file import Values
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.program import result
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.image_policies.evaluate import (
    Images,
    LinkedImagePolicy,
)
from kyverno_mp.program.image_policies.ports import PolicyImages
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import EMPTY_OBJECT, Request
from kyverno_mp.program.validating_policy.scope import Facts, KindShared
from kyverno_mp.values.jsonvalue import Json


class ImagePolicies:
    """Policies linked once, applied to many objects."""

    def __init__(
        self,
        given: CelInput,
        values: Values,
        user: UserInfo | None,
        cluster_data: ClusterData,
    ) -> None:
        self._policies = [LinkedImagePolicy(ir) for ir in given.images]
        self._ports = cluster_data.cel
        self._key_secrets = cluster_data.key_secrets
        self._values = values
        self._user = user or UserInfo()
        self._plurals = known_plurals(given.plurals)
        self._uses_docker = given.uses_docker
        self._layout = given.layout

    def _begin(self) -> PolicyImages:
        # PERF: TLS costs 20 ms, which only runs that verify images pay.
        from kyverno_mp.cli.cluster.image_access import policy_images

        begin = policy_images(
            uses_docker=self._uses_docker,
            layout=self._layout,
            key_secrets=self._key_secrets,
        )
        self._begin = begin  # type: ignore[method-assign]  # opened once
        return begin()

    def validate(self, request: Request, runtime: Runtime) -> Iterator[Verdict]:
        """Yield the verdicts on an object.

        KYVERNO: copies for controllers share the name of their policy, whose one
        response is that of the copy that was evaluated.
        """
        asked = self._asked(request)
        namespace = namespace_of(asked, self._values)
        facts = Facts(asked, runtime, self._ports, namespace)
        shared, images = KindShared(asked), Images(self._begin)
        for linked in self._policies:
            policy = linked.ir.policy
            runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
            answers = list(linked.evaluate(facts, shared, images, of_files=True))
            found = [one.result for one in answers if one.result is not None]
            if found or not all(one.is_matched for one in answers):
                yield Verdict(policy, found[-1] if found else None)

    def validate_payload(
        self, payload: dict[str, Json], runtime: Runtime
    ) -> Iterator[Verdict]:
        """Yield the verdicts on a payload; only policies for payloads see it.

        KYVERNO: without exceptions; an error ends the run. Raises: CommandFailed.
        """
        request = Request(object=payload, version="")
        facts = Facts(request, runtime, self._ports, is_payload=True)
        shared, images = Shared(request), Images(self._begin)
        for linked in self._policies:
            if not linked.ir.is_json:
                continue
            policy = linked.ir.policy
            runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
            for answer in linked.evaluate(
                facts, shared, images, of_files=True, has_exceptions=False
            ):
                found = answer.result
                if answer.copy or found is None:
                    continue
                if found.status == result.ERROR:
                    reason = found.message.removeprefix("failed to evaluate policy: ")
                    text = "failed to apply image validating policies on JSON payload"
                    raise CommandFailed(f"{text}: {reason}")
                yield Verdict(policy, found)

    def _asked(self, request: Request) -> Request:
        """Return the request as upstream builds it: always a CREATE by the user."""
        plural = self._plurals.get((request.group, request.kind), "")
        if not plural:
            raise unknown_kind(request)
        asked = asked_by(self._user, request, plural)
        name = asked.namespace
        if not asked.namespace_labels and self._values.lacks_namespace(name):
            asked = replace(asked, namespace_labels={NAME_LABEL: name})
        return replace(asked, old_object=EMPTY_OBJECT)
