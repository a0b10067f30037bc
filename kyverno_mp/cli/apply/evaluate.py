"""Apply compiled policies to objects, one object at a time.

Room: cli. Takes: compiled policies, objects, values, a user. Gives: Responses per
object, mutating policies first, then in policy order. Next: command,
cli/testing/command.
May touch: nothing outside its arguments (the ports of cluster data are passed in).
Source: docs/behaviour/cli 7, 7b, 8.

Over 400 lines: the stages of one object, in their order.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from kyverno_mp.cli.apply.fast_validate import batch_of, with_manifests
from kyverno_mp.cli.apply.stages.admission_policies import (
    AdmissionInput,
    AdmissionPolicies,
    Verdict,
)
from kyverno_mp.cli.apply.stages.cel_policies import CelInput, CelPolicies, Payload
from kyverno_mp.cli.sources.user_info import UserInfo
from kyverno_mp.cli.sources.values_file import Values
from kyverno_mp.ir.cleanup import CleanupIR
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.engine import Clock, Engine, LinkedPolicy, link_policy
from kyverno_mp.program.matching.subject import metadata_text, resource_name
from kyverno_mp.program.plans.batch import Batch
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.program.recall.verdicts import VerdictCache
from kyverno_mp.program.request import Request, VerifiedImages
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.values.dotted import merged, nested
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.cli.apply.stages.authorization import AuthorizationStage
    from kyverno_mp.cli.apply.stages.cel import CelStages
    from kyverno_mp.cli.apply.stages.generation import CloneSources, Generations
    from kyverno_mp.cli.apply.stages.image import ImageStage
    from kyverno_mp.cli.apply.stages.image_policies import ImagePolicies
    from kyverno_mp.expr.cel.authz.messages import Message
    from kyverno_mp.program.cleanup import LinkedCleanup
    from kyverno_mp.program.generate.rule import LinkedGeneration
    from kyverno_mp.program.images.rule import LinkedImageRule
    from kyverno_mp.program.mutate.rule import LinkedMutation

_KEPT_OPERATIONS = ("DELETE", "UPDATE")
_OTHER_STAGES = ("mutate", "generate", "verifyImages")


class Response(msgspec.Struct):
    """The response of one policy for one object; ``results`` is empty without a match.

    ``passed`` and ``skipped`` contain names of rules without messages. ``patched`` is
    the object after a mutating policy, None for any other policy. ``is_as_read``: no
    rule has changed it yet. ``path`` is the path of the original object.
    """

    policy: PolicyIR
    resource: dict[str, Json]
    results: list[RuleResult]
    action: str = "Audit"
    passed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    patched: dict[str, Json] | None = None
    path: str = ""
    is_as_read: bool = False


def resource_path(resource: dict[str, Json]) -> str:
    """Return ``<namespace>/<Kind>/<name>``."""
    namespace = metadata_text(resource, "namespace")
    return f"{namespace}/{resource.get('kind', '')}/{metadata_text(resource, 'name')}"


def _response(verdict: Verdict, resource: dict[str, Json]) -> Response:
    results = [] if verdict.result is None else [verdict.result]
    return Response(verdict.policy, resource, results)


def _has(policies: Sequence[CompiledPolicy], rule_type: str) -> bool:
    return any(
        rule.rule_type == rule_type for policy in policies for rule in policy.rules
    )


# PERF: faster start of the CLI: a run imports only the code of its rule types.


def _linked_mutations(
    policies: Sequence[CompiledPolicy],
) -> "list[tuple[PolicyIR, list[LinkedMutation]]]":
    from kyverno_mp.program.mutation import link_mutations

    linked = [(policy.policy, link_mutations(policy)) for policy in policies]
    return [(policy, rules) for policy, rules in linked if rules]


def _generations(
    policies: Sequence[CompiledPolicy],
    cluster_data: ClusterData,
    clock: Clock,
    sources: "CloneSources",
) -> "Generations":
    from kyverno_mp.cli.apply.stages.generation import Generations

    return Generations(policies, cluster_data, clock, sources)


def _stages(
    cel: CelInput, values: Values, user: UserInfo | None, ports: CelPorts
) -> "CelStages":
    from kyverno_mp.cli.apply.stages.cel import CelStages

    return CelStages(cel, values, user, ports)


def _linked_cleanups(cleanups: Sequence[CleanupIR]) -> "list[LinkedCleanup]":
    from kyverno_mp.program.cleanup import LinkedCleanup

    return [LinkedCleanup(cleanup) for cleanup in cleanups]


class Evaluator:
    """Policies linked once, applied to many objects.

    Without ``with_messages``, responses may contain only the names of passed and
    skipped rules, and policies without a match may be omitted.
    """

    def __init__(  # noqa: PLR0913 - the inputs of a run, keyword-only
        self,
        policies: Sequence[CompiledPolicy],
        *,
        values: Values,
        user: UserInfo | None,
        cluster_data: ClusterData,
        clock: Clock,
        sources: "CloneSources | None" = None,
        cleanups: Sequence[CleanupIR] = (),
        admission: AdmissionInput | None = None,
        cel: CelInput | None = None,
        with_messages: bool = True,
    ) -> None:
        self._generations: Generations | None = None
        if _has(policies, "generate"):
            self._generations = _generations(
                policies, cluster_data, clock, sources or {}
            )
        self._cleanups = _linked_cleanups(cleanups) if cleanups else []
        mutates = _has(policies, "mutate")
        self._mutating = _linked_mutations(policies) if mutates else []
        self._images: ImageStage | None = None
        self._verified_images: VerifiedImages | None = None
        """What the rules have verified of the current object."""
        if _has(policies, "verifyImages"):
            from kyverno_mp.cli.apply.stages import image as image_stage

            self._images = image_stage.ImageStage(policies, cluster_data)
        # Policies that only mutate or only generate have no validate response.
        self._policies = [
            linked
            for policy in policies
            if (linked := link_policy(policy)).rules
            or not any(r.rule_type in _OTHER_STAGES for r in policy.rules)
        ]
        self._admission = AdmissionPolicies(admission or AdmissionInput(), user)
        self._cel = CelPolicies(cel or CelInput(), values, user, cluster_data.cel)
        self._payload_word = (cel or CelInput()).payload_word
        self._stages: CelStages | None = None
        if cel is not None and cel.others:
            self._stages = _stages(cel, values, user, cluster_data.cel)
        self._authorization: AuthorizationStage | None = None
        if cel is not None and cel.authorization:
            from kyverno_mp.cli.apply.stages import authorization

            self._authorization = authorization.AuthorizationStage(
                cel.authorization, cluster_data.cel
            )
        self._image_policies: ImagePolicies | None = None
        if cel is not None and cel.images:
            from kyverno_mp.cli.apply.stages import image_policies

            self._image_policies = image_policies.ImagePolicies(
                cel, values, user, cluster_data
            )
        self.operation = ""
        """The operation of all requests, "" for that of the values file."""
        self._values = values
        self._user = user
        self._engine = Engine(with_manifests(cluster_data, policies), clock)
        self._namespaces = cluster_data.namespaces
        self._batch = None if with_messages else batch_of(self._policies, values)

    def apply(self, resource: dict[str, Json]) -> list[Response]:
        """Apply all mutating policies, then validate the mutated object.

        Returns one response per policy and stage, in the order of the policies.
        """
        if isinstance(resource, Payload):
            # KYVERNO: only policies in CEL get the payload; other policies get an empty
            # object (docs/behaviour/cli 8).
            return [
                *self.apply({}),
                *self._validate_payload(resource),
                *self._validate_images(resource, is_payload=True),
                *self._delete(resource, self._payload_word),
            ]
        name = metadata_text(resource, "name")
        original = resource
        responses = []
        if self._mutating:
            path, is_as_read = resource_path(resource), True
            for policy, rules in self._mutating:
                response = self._mutate(policy, rules, resource, name)
                response.path = path
                is_as_read = is_as_read and not any(
                    rule.status == result.PASS for rule in response.results
                )
                response.is_as_read = is_as_read
                responses.append(response)
                # KYVERNO: after an error the object is empty
                # (docs/behaviour/engine 7.2).
                resource = response.patched or {}
        verifications, resource = self._verify_images(resource, name)
        responses += verifications
        if self._batch is not None:
            responses.extend(self._validate_fast(self._batch, resource, name))
        else:
            responses.extend(self._validate(resource, name))
        for response in self._mutate_admission(resource):
            responses.append(response)
            resource = response.patched or {}
        for response in self._mutate_cel(resource):
            responses.append(response)
            if response.patched is not None:
                resource = response.patched
        if resource and self._cel.validates:
            context = self._engine.open(self._request(resource, {}))
            verdicts = self._cel.validate(context.request, context.runtime)
            responses.extend(_response(verdict, resource) for verdict in verdicts)
        responses.extend(self._evaluate_admission(resource))
        responses.extend(self._generate_cel(resource, resource_path(original)))
        responses.extend(self._generate(resource, name))
        responses.extend(self._validate_images(original))
        if original:
            responses.extend(self._delete(original))
        responses.extend(self._clean_up(original))
        return responses

    def authorize(self, mode: str, request: "Message") -> list[Response]:
        """Return a response of each policy in an evaluation mode, HTTP or Envoy."""
        if self._authorization is None:
            return []
        runtime = self._engine.open(Request()).runtime
        verdicts = self._authorization.decide(mode, request, runtime)
        return [_response(verdict, {}) for verdict in verdicts]

    def _validate_payload(self, payload: Payload) -> Iterator[Response]:
        """Yield the responses of policies in JSON mode."""
        if self._cel.validates:
            runtime = self._engine.open(Request()).runtime
            for verdict in self._cel.validate_payload(payload, runtime):
                yield _response(verdict, payload)

    def forget(self) -> None:
        """Clear the cache of verdicts, so that the next evaluation is a full one."""
        self._engine.verdicts = VerdictCache()

    def _validate(self, resource: dict[str, Json], name: str) -> Iterator[Response]:
        """Yield one response per validate policy."""
        shared: dict[str, RequestContext] = {}
        for linked in self._policies:
            dotted = self._values.for_resource(linked.ir.name, name)
            # Policies with the same values share one request and its JSON context.
            key = repr(sorted(dotted.items(), key=lambda item: item[0]))
            context = shared.get(key)
            if context is None:
                request = self._request(resource, dotted)
                context = shared[key] = self._engine.open(request)
            yield self._evaluate(linked, context, resource)

    def _validate_fast(
        self, batch: Batch, resource: dict[str, Json], name: str
    ) -> Iterator[Response]:
        """Yield responses of matching policies; passes and skips have no messages."""
        request = self._request(resource, self._values.for_resource("", name))
        for answer in batch.run(self._engine, request):
            yield Response(
                answer.policy,
                resource,
                answer.results,
                answer.action,
                answer.passed,
                answer.skipped,
            )

    def _mutate_admission(self, resource: dict[str, Json]) -> Iterator[Response]:
        """Yield responses of the API server's own mutating policies, in order."""
        if self._admission.mutates:
            path = resource_path(resource)
            context = self._engine.open(self._request(resource, {}))
            for verdict in self._admission.mutate(context.request, context.runtime):
                assert verdict.result is not None
                patched, policy = verdict.patched, verdict.policy
                yield Response(
                    policy, resource, [verdict.result], patched=patched, path=path
                )
                resource = patched or {}

    def _mutate_cel(self, resource: dict[str, Json]) -> Iterator[Response]:
        """Yield responses of MutatingPolicies; mutate-existing policies come last."""
        if self._stages is None or not resource:
            return
        path, stages = resource_path(resource), self._stages
        context = self._engine.open(self._request(resource, {}))
        last = resource
        for verdict in stages.mutate(context.request, context.runtime):
            response = _response(verdict, resource)
            response.patched = last = verdict.patched or resource
            response.path = path
            yield response
        request = self._request(last, {})
        trigger = replace(request, object=last)
        for verdict in stages.mutate_targets(trigger, context.runtime):
            yield _response(verdict, last)

    def _generate_cel(self, resource: dict[str, Json], path: str) -> Iterator[Response]:
        """Yield responses of GeneratingPolicies; ``path``: of the unmutated object."""
        if self._stages is not None and resource:
            context = self._engine.open(self._request(resource, {}))
            for verdict in self._stages.generate(context.request, context.runtime):
                response = _response(verdict, resource)
                response.path = path
                yield response

    def _delete(
        self, resource: dict[str, Json], noun: str = "resource"
    ) -> Iterator[Response]:
        """Yield responses of DeletingPolicies on the original object."""
        if self._stages is not None:
            # CEL reads only plain maps, which a Payload is not.
            context = self._engine.open(self._request(dict(resource), {}))
            verdicts = self._stages.delete(context.request, context.runtime, noun)
            for verdict in verdicts:
                yield _response(verdict, resource)

    def _evaluate_admission(self, resource: dict[str, Json]) -> Iterator[Response]:
        """Yield responses of the API server's own validating policies."""
        if self._admission.validates:
            context = self._engine.open(self._request(resource, {}))
            for verdict in self._admission.validate(context.request, context.runtime):
                yield _response(verdict, resource)

    def _generate(self, resource: dict[str, Json], name: str) -> Iterator[Response]:
        """Yield responses of generate rules, with the generated objects."""
        if self._generations is None:
            return
        for policy, rules in self._generations.policies:
            dotted = self._values.for_resource(policy.name, name)
            request = self._request(resource, dotted)
            request.rule_variables = self._rule_variables(policy, rules)
            answer = self._generations.apply(policy, rules, request)
            if answer is not None:
                path = resource_path(resource)
                yield Response(policy, resource, answer.results, path=path)

    def _validate_images(
        self, resource: dict[str, Json], *, is_payload: bool = False
    ) -> Iterator[Response]:
        """Yield responses of ImageValidatingPolicies on the original object."""
        if self._image_policies is None or not resource:
            return
        context = self._engine.open(self._request(resource, {}))
        stage, runtime = self._image_policies, context.runtime
        if is_payload:
            verdicts = stage.validate_payload(dict(resource), runtime)
        else:
            verdicts = stage.validate(context.request, runtime)
        for verdict in verdicts:
            yield _response(verdict, resource)

    def _clean_up(self, resource: dict[str, Json]) -> Iterator[Response]:
        """Yield responses of clean-up policies on the original object."""
        for cleanup in self._cleanups:
            context = self._engine.open(self._request(resource, {}))
            rule_result = cleanup.evaluate(context)
            yield Response(cleanup.ir.policy, resource, [rule_result])

    def _mutate(
        self,
        policy: PolicyIR,
        rules: "Sequence[LinkedMutation]",
        resource: dict[str, Json],
        name: str,
    ) -> Response:
        dotted = self._values.for_resource(policy.name, name)
        request = self._request(resource, dotted)
        request.rule_variables = self._rule_variables(policy, rules)
        from kyverno_mp.program.mutation import begin, mutate_policy

        context = self._engine.open(request)
        answer = mutate_policy(policy, rules, context, begin(context), existing=True)
        patched = answer.patched_object
        return Response(policy, resource, answer.results, patched=patched)

    def _verify_images(
        self, resource: dict[str, Json], name: str
    ) -> tuple[list[Response], dict[str, Json]]:
        """Return the responses of verifyImages rules, and the object with digests.

        Each policy gets the object as the previous policy changed it.
        """
        if self._images is None:
            return [], resource
        responses = []
        state = self._images.begin(resource)
        for policy, rules in self._images.policies:
            dotted = self._values.for_resource(policy.name, name)
            request = self._request(state.resource, dotted)
            request.rule_variables = self._rule_variables(policy, rules)
            context = self._engine.open(request)
            verification = self._images.verify(policy, rules, context, state)
            responses.append(
                Response(policy, resource, verification.results, verification.action)
            )
        self._verified_images = state.record.scoped()
        return responses, state.resource

    def _rule_variables(
        self,
        policy: PolicyIR,
        rules: "Iterable[LinkedRule | LinkedMutation | LinkedGeneration"
        " | LinkedImageRule]",
    ) -> dict[str, Json]:
        return {
            rule.ir.name: tree
            for rule in rules
            if (tree := self._values.for_rule(policy.name, rule.ir.name))
        }

    def _evaluate(
        self, policy: LinkedPolicy, context: RequestContext, resource: dict[str, Json]
    ) -> Response:
        if self._values.rules:
            variables = self._rule_variables(policy.ir, policy.rules)
            context.request.rule_variables = variables
        answer = self._engine.explain(policy, context)
        return Response(policy.ir, resource, answer.results, answer.action)

    def _request(self, resource: dict[str, Json], dotted: dict[str, Json]) -> Request:
        if self.operation:
            dotted = {**dotted, "request.operation": self.operation}
        operation = str(dotted.get("request.operation", "CREATE"))
        review_operation = operation if operation in _KEPT_OPERATIONS else "CREATE"
        namespace = metadata_text(resource, "namespace")
        group, version, kind, subresource = self._matched_kind(resource)
        review_request: dict[str, Json] = {
            "operation": review_operation,
            "namespace": namespace,
        }
        if review_operation != "DELETE":
            review_request["object"] = resource
        if review_operation != "CREATE":
            review_request["oldObject"] = resource
        if self._user is not None:
            # KYVERNO: empty fields are absent (docs/behaviour/engine 3.4).
            raw = self._user.raw
            review_request["userInfo"] = {key: raw[key] for key in raw if raw[key]}
            if self._user.roles:
                review_request["roles"] = list(self._user.roles)
            if self._user.cluster_roles:
                review_request["clusterRoles"] = list(self._user.cluster_roles)
        root: Json = {"request": review_request}
        for key, value in dotted.items():
            root = merged(root, nested(key, value))
        review_request = root.pop("request")
        if self._user is not None and self._user.is_zero:
            root = {"serviceAccountName": "", "serviceAccountNamespace": "", **root}
        user = self._user or UserInfo()
        return Request(
            operation=review_operation,
            group=group,
            version=version,
            kind=kind,
            subresource=subresource,
            name=resource_name(resource),
            namespace=namespace,
            object=review_request.get("object") or {}
            if review_operation != "DELETE"
            else {},
            old_object=review_request.get("oldObject") or {}
            if review_operation != "CREATE"
            else {},
            username=user.username,
            groups=user.groups,
            roles=user.roles,
            cluster_roles=user.cluster_roles,
            has_user_info=self._user is not None and not self._user.is_zero,
            namespace_labels=self._labels(namespace, kind),
            review_request=review_request,
            variables=root,
            verified_images=self._verified_images,
        )

    def _labels(self, namespace: str, kind: str) -> dict[str, str]:
        """Return a namespace's labels: from the values file, else from the cluster."""
        namespace_label = self._values.namespace_labels.get(namespace, {})
        if (
            namespace_label
            or self._namespaces is None
            or not namespace
            or kind == "Namespace"
        ):
            return namespace_label
        return dict(self._namespaces.labels(namespace) or {})

    def _matched_kind(self, resource: dict[str, Json]) -> tuple[str, str, str, str]:
        """Return the kind to match on; a configured subresource maps to its parent."""
        api_version = str(resource.get("apiVersion", ""))
        group, _, version = api_version.rpartition("/")
        kind = str(resource.get("kind", ""))
        for entry in self._values.subresources:
            child, parent = entry.get("subresource") or {}, entry.get("parentResource")
            if parent and (
                child.get("kind") == kind
                and child.get("version", "") == version
                and child.get("group", "") == group
            ):
                return (
                    parent.get("group", ""),
                    parent.get("version", ""),
                    parent.get("kind", ""),
                    str(child.get("name", "")).partition("/")[2],
                )
        return group, version, kind, ""
