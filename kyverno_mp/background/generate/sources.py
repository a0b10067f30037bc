"""Find out whether the source of a clone still exists.

Room: background. Takes: a rule and its clones. Gives: Sources. Next:
background/generate/generator.py, background/generate/preview.py. May touch: the API
server through objects/triggers.py.
Source: docs/background.md (sources and generated objects).

SAFETY: every user who can write an object can forge the labels that name its source.
The sources are listed with the pool's permissions, so labels lead only to places where
the rule itself looks for sources.
"""

from dataclasses import dataclass, field

from kyverno_mp.background.objects.downstream import Found
from kyverno_mp.background.objects.labels import source_of
from kyverno_mp.background.objects.triggers import Triggers
from kyverno_mp.background.policies import GenerateRule, ReadyPolicy
from kyverno_mp.background.update_request import Trigger
from kyverno_mp.errors import KubeNotFound, KubeRefused
from kyverno_mp.kube.resource import Resource
from kyverno_mp.limits import BACKGROUND_SOURCE_LISTS_MAX


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the clones for one trigger; not thread-safe."""

    triggers: Triggers
    policy: ReadyPolicy
    rule: GenerateRule
    _listed: dict[tuple[Resource, str], frozenset[str] | KubeRefused | None] = field(
        default_factory=dict
    )
    """The uids in a namespace; None if the kind is not served."""

    def lack(self, clone: Found) -> bool:
        """Return whether an object is a clone whose source is certainly gone.

        Raises: DependencyError.
        """
        source = source_of(clone.labels)
        if source is None or not self._is_possible(clone.resource, source):
            return False
        uids = self._uids(clone.resource, source.namespace)
        return uids is not None and source.uid not in uids

    def _is_possible(self, resource: Resource, source: Trigger) -> bool:
        """Return whether the rule can have cloned this source."""
        group = source.api_version.rpartition("/")[0]
        # KYVERNO: a clone has the same kind as its source.
        if (group, source.kind) != (resource.group, resource.kind):
            return False
        if resource.namespaced != bool(source.namespace):
            return False
        policy_namespace = self.policy.stored.key[0]
        if policy_namespace:
            return source.namespace == policy_namespace
        named = self.rule.source_namespaces
        return named is None or source.namespace in named

    def _uids(self, resource: Resource, namespace: str) -> frozenset[str] | None:
        """Return the uids in a namespace; None if they are unknown.

        Raises: DependencyError, a KubeRefused for each object of the same place.
        """
        list_key = resource, namespace
        if list_key not in self._listed:
            if len(self._listed) >= BACKGROUND_SOURCE_LISTS_MAX:
                return None
            self._listed[list_key] = self._list(resource, namespace)
        uids = self._listed[list_key]
        if isinstance(uids, KubeRefused):
            raise uids
        return uids

    def _list(
        self, resource: Resource, namespace: str
    ) -> frozenset[str] | KubeRefused | None:
        try:
            return self.triggers.uids(resource, namespace)
        except KubeNotFound:
            return None
        except KubeRefused as error:
            return error
