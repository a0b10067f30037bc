"""Collect the objects that a GeneratingPolicy generates for one trigger.

Room: background. Takes: calls of ``generator.apply``. Gives: Collector, a GeneratorPort
that creates nothing. Next: background/generating/run.py writes the objects.
May touch: discovery, through background/objects/kinds.py.
Source: docs/behaviour/cel 10.2; Kyverno pkg/cel/libs/context.go (GenerateResources).

Upstream creates each object while the expression runs; here all objects are written
after every expression has succeeded, so that a later error leaves none of them behind.
"""

from collections.abc import Sequence
from typing import Final

from kyverno_mp.background.generating.sources import Sources
from kyverno_mp.background.objects.content import OF_THE_SERVER
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.labels import labels_of
from kyverno_mp.background.update_request import Trigger
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.limits import GENERATED_OBJECTS_MAX
from kyverno_mp.program.generate.labels import PREFIX, without_tracking
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.program.generate.target import DownstreamTarget
from kyverno_mp.values.jsonvalue import Json

_OWNERS: Final = "ownerReferences"


class Collector:
    """The objects of one policy for one trigger."""

    def __init__(
        self, policy: str, trigger: Trigger, kinds: Kinds, sources: Sources
    ) -> None:
        """``policy``: ``name`` or ``namespace/name``."""
        self._policy = policy
        self._own = policy.rpartition("/")[0]
        self._trigger = trigger
        self._kinds = kinds
        self._sources = sources
        self.objects: list[Generated] = []

    def generate(
        self, namespace: str, objects: Sequence[Json], deadline_ns: int
    ) -> None:
        """Collect objects and the items of lists.

        Raises: ExpressionFailed, DependencyError.
        """
        del deadline_ns  # only discovery may block here
        for raw in objects:
            if type(raw) is not dict:
                raise ExpressionFailed("generate.object", "not an object")
            items = raw.get("items")
            for item in items if type(items) is list else [raw]:
                if type(item) is not dict:
                    raise ExpressionFailed("generate.object", "not an object")
                self._take(item, namespace)

    def _take(self, raw: dict[str, Json], namespace: str) -> None:
        if len(self.objects) >= GENERATED_OBJECTS_MAX:
            raise ExpressionFailed(
                "generate.many", f"more than {GENERATED_OBJECTS_MAX} objects"
            )
        api_version, kind = _text(raw, "apiVersion"), _text(raw, "kind")
        resource = self._kinds.of_kind(api_version, kind) if kind else None
        if resource is None or not api_version:
            message = f'no matches for kind "{kind}" in version "{api_version}"'
            raise ExpressionFailed("generate.kind", message)
        if not resource.namespaced and namespace:
            raise ExpressionFailed(
                "generate.scope",
                "cross-scope generation denied: a policy scoped to namespace"
                f' "{namespace}" cannot generate cluster-scoped resource'
                f" {api_version}/{kind}",
            )
        if self._own and namespace != self._own:
            # SAFETY: a second check; the CEL library rejects this, too.
            raise ExpressionFailed(
                "generate.scope",
                f'cross-namespace generation denied: policy in "{self._own}" cannot'
                f' generate into "{namespace}"',
            )
        labelled = self._made(raw, namespace)
        name = str(labelled["metadata"].get("name") or "")
        trigger = self._trigger
        if (kind, namespace, name) == (trigger.kind, trigger.namespace, trigger.name):
            # An object that is its own trigger already exists and was not generated.
            return
        if not name:
            raise ExpressionFailed("generate.name", f"{kind} has no metadata.name")
        target = DownstreamTarget(api_version, kind, namespace, name)
        self.objects.append(Generated(target, labelled))

    def _made(self, raw: dict[str, Json], namespace: str) -> dict[str, Json]:
        """Return the object to create, with its labels."""
        source = raw.get("metadata")
        metadata = dict(source) if type(source) is dict else {}
        is_clone = bool(metadata.get("resourceVersion"))
        if is_clone:
            metadata = without_tracking(metadata)
        source_uid = str(metadata.get("uid") or "") if is_clone else ""
        kind = _text(raw, "apiVersion"), _text(raw, "kind")
        if not self._sources.may_be_clone(source_uid, *kind):
            # The object only has the metadata of an object of another kind.
            source_uid = ""
        if metadata.get("namespace") not in (None, "", namespace):
            # K8S: owner references do not cross namespaces.
            metadata.pop(_OWNERS, None)
        for name in (*OF_THE_SERVER, "namespace"):
            metadata.pop(name, None)
        if namespace:
            metadata["namespace"] = namespace
        source_labels = metadata.get("labels")
        labels = source_labels if type(source_labels) is dict else {}
        metadata["labels"] = {
            # SAFETY: the labels of a source may name another origin, or be forged.
            **{
                name: value
                for name, value in labels.items()
                if not name.startswith(PREFIX)
            },
            **labels_of(self._policy, self._trigger, source_uid),
        }
        return {**raw, "metadata": metadata}


def _text(raw: dict[str, Json], key: str) -> str:
    value = raw.get(key)
    return value if type(value) is str else ""
