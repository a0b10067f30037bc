"""Run verifyImages rules, between mutation and validation.

Room: cli. Takes: compiled policies, the ports of a run. Gives: ImageStates, responses.
Next: evaluate. May touch: registries.
Source: docs/behaviour/images 2.1 (CLI).
"""

from collections.abc import Sequence

from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.images.rule import ImageState, LinkedImageRule
from kyverno_mp.program.images.verification import link_image_rules, verify_policy
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.values.jsonvalue import Json


class ImageStage:
    """The policies with verifyImages rules that this version evaluates."""

    def __init__(
        self, policies: Sequence[CompiledPolicy], cluster_data: ClusterData
    ) -> None:
        linked = [
            (compiled.policy, link_image_rules(compiled)) for compiled in policies
        ]
        self.policies: list[tuple[PolicyIR, list[LinkedImageRule]]] = [
            (policy, rules) for policy, rules in linked if rules
        ]
        self._begin = cluster_data.reviewed_images
        self._key_secrets = cluster_data.key_secrets

    def begin(self, resource: dict[str, Json]) -> ImageState:
        """Return the state of one object before the first policy."""
        if self._begin is None:
            # PERF: importing TLS takes 20 ms; only runs that verify images need it.
            from kyverno_mp.cli.cluster.image_access import image_reviews

            # KYVERNO: without --registry, registries are read without credentials.
            self._begin = image_reviews(
                uses_docker=False, key_secrets=self._key_secrets
            )
        return ImageState(self._begin(), resource, is_stored=False)

    def verify(
        self,
        policy: PolicyIR,
        rules: Sequence[LinkedImageRule],
        context: RequestContext,
        state: ImageState,
    ) -> PolicyResponse:
        """Run the rules of one policy, and store the changed object in the state."""
        return verify_policy(policy, rules, context, state)
