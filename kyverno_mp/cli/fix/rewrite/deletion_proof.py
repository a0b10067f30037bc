"""Compare a clean-up policy and its DeletingPolicy on the same stored objects.

Room: cli. Takes: both documents. Gives: the objects that only one of them deletes.
Next: cli/fix/to_cel.py. May touch: the clock, for deadlines.
Source: docs/architecture.md 2 (the clean-up pool runs the same plans).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.cleanup.deleting import compiled_in_cel
from kyverno_mp.cleanup.evaluator import Evaluator, Verdict
from kyverno_mp.cleanup.plan import Plan
from kyverno_mp.cleanup.policy import (
    CompiledPolicy,
    StoredPolicy,
    compiled_policy,
    stored_policy,
)
from kyverno_mp.cleanup.scan import Scan, resources_of
from kyverno_mp.cli.fix.rewrite.delete import Deletion
from kyverno_mp.cli.fix.rewrite.match import Resource
from kyverno_mp.cli.fix.rewrite.proof import Difference
from kyverno_mp.cli.fix.rewrite.stored_objects import (
    DEFAULT_NAMESPACE,
    NOW,
    Sample,
    StoredObjects,
)
from kyverno_mp.cli.replay.unrecorded import unrecorded
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.policy_resources import resource_of
from kyverno_mp.kube.resource import Resource as Served
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN
from kyverno_mp.values.kubernetes.policy_kinds import CLEANUP_POLICY, IN_CEL

_NEIGHBOURS_MAX: Final = 10
"""Kept and deleted objects that are compared again with each of their parts changed."""
_VERBS: Final = ("list", "delete")


class Deletions(NamedTuple):
    """The objects that were compared, and those on which the policies differ."""

    objects: int
    differences: list[Difference]


@dataclass(frozen=True, slots=True)
class _Dependencies:
    """What an Evaluator needs; no object is exempt."""

    cluster_data: ClusterData
    settings: Settings
    clock: Clock
    is_excluded: Callable[[Request], bool] = lambda _request: False


class _Labels(NamedTuple):
    """The labels of each namespace."""

    of: dict[str, dict[str, str]]

    def labels(self, namespace: str) -> dict[str, str]:
        """Return the labels of a namespace."""
        return self.of.get(namespace, {})


def compare(policy: AnyCleanupPolicy, raw: Json, deletion: Deletion) -> Deletions:
    """Evaluate generated objects with the plans of both policies.

    ``raw``: the clean-up policy as a document. Raises: InputError if a policy is not
    valid.
    """
    settings = Settings()
    before = compiled_policy(_stored(raw), settings)
    after = compiled_in_cel(_stored(deletion.document), [], b"", settings)
    kind = str(deletion.document["kind"])
    differences = [
        Difference(what, str(old), str(new), kind)
        for what, old, new in _run_facts(before, after, deletion)
        if old != new
    ]
    samples = StoredObjects(policy, deletion.resources)
    labels = _Labels(samples.namespaces)
    cluster_data = unrecorded(lambda _: None, labels, lambda _: None)
    needs = _Dependencies(cluster_data, settings, Clock(now=lambda: NOW))
    evaluators = [Evaluator(one.plan, needs) for one in (before, after)]
    count = 0
    reached: dict[Verdict, list[Sample]] = {verdict: [] for verdict in Verdict}

    def compared(tried: Iterable[Sample]) -> Iterator[Difference]:
        nonlocal count
        for sample in tried:
            old, new = (_verdict(one, sample) for one in evaluators)
            count += 1
            reached[old].append(sample)
            if (old is Verdict.DELETED) is not (new is Verdict.DELETED):
                shown = msgspec.json.encode(sample.content).decode()
                yield Difference(shown, old.value, new.value, kind)

    differences += compared(samples.at_random())
    for verdict in (Verdict.KEPT, Verdict.DELETED):
        some = reached[verdict]
        spread = some[:: -(-len(some) // _NEIGHBOURS_MAX) or 1]
        differences += compared(samples.beside(spread))
    return Deletions(count, differences)


def _stored(raw: Json) -> StoredPolicy:
    """Return a policy as the API server would store it."""
    kind = next(
        stored
        for row in (CLEANUP_POLICY, IN_CEL[CLEANUP_POLICY.name])
        for stored in row.stored
        if stored.kind == raw["kind"]
    )
    metadata = raw["metadata"]
    if kind.namespaced:
        metadata = {"namespace": DEFAULT_NAMESPACE, **metadata}
    encoded = msgspec.json.encode({**raw, "metadata": metadata})
    stored = stored_policy(resource_of(kind), encoded)
    assert stored is not None, "the document has no deletionTimestamp"
    return stored


def _run_facts(
    before: CompiledPolicy, after: CompiledPolicy, deletion: Deletion
) -> Iterator[tuple[str, object, object]]:
    """Yield what both policies do apart from their decisions."""
    custom = [one for one in deletion.resources if not _is_built_in(one)]
    served = [
        *(
            (one.group, one.version, one.plural, one.kind, one.is_namespaced)
            for one in BUILT_IN
        ),
        *((one.group, one.version, one.plural, one.kind, True) for one in custom),
    ]
    directory = Directory(
        Served(
            group=group,
            version=version,
            plural=plural,
            kind=kind,
            namespaced=is_namespaced,
            verbs=_VERBS,
        )
        for group, version, plural, kind, is_namespaced in served
    )
    old, new = before.plan, after.plan
    yield "schedule", old.schedule, new.schedule
    yield "propagation", old.propagation, new.propagation
    yield "namespace", old.namespace, new.namespace
    yield "options", before.options, after.options
    yield "resources", _listed(old, directory), _listed(new, directory)


def _is_built_in(resource: Resource) -> bool:
    return any(
        (one.group, one.plural) == (resource.group, resource.plural) for one in BUILT_IN
    )


def _listed(plan: Plan, directory: Directory) -> list[tuple[str, str, str]]:
    found = resources_of(plan, directory, Scan())
    return sorted((one.group, one.version, one.plural) for one, _ in found)


def _verdict(evaluator: Evaluator, sample: Sample) -> Verdict:
    resource = sample.resource
    served = Served(
        group=resource.group,
        version=resource.version,
        plural=resource.plural,
        kind=resource.kind,
    )
    verdict, _ = evaluator.evaluate(served, sample.content)
    return verdict
