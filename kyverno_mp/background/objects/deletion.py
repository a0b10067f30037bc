"""Delete the generated objects of a deleted policy or rule.

Room: background. Takes: the labels and kinds of the objects. Gives: ``delete_data``,
``delete_named``. Next: background/generate/policy_events.py,
background/generate/generator.py, background/generating/events.py. May touch: the API
server through objects/downstream.py.
Source: docs/behaviour/controllers 5.5; docs/background.md.
"""

from collections.abc import Collection

from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.labels import Selector
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.update_request import Task
from kyverno_mp.pool.sinks import Metrics
from kyverno_mp.program.generate.labels import SOURCE_UID
from kyverno_mp.telemetry.families import BACKGROUND_WRITES


def delete_data(
    downstream: Downstream,
    metrics: Metrics,
    selector: Selector,
    kinds: Collection[tuple[str, str]] | None,
    refusals: Refusals,
    namespace: str = "",
) -> None:
    """Delete all objects except clones; continue after a refusal.

    ``namespace``: only in this one; "" = in all.
    Raises: DependencyErrors other than refusals.
    """
    with refusals.kept():
        for found in downstream.find(selector, kinds, namespace):
            if found.labels.get(SOURCE_UID):
                # KYVERNO: clones stay when their rule or policy is deleted.
                continue
            with refusals.kept():
                if downstream.delete(found, selector):
                    metrics.count(BACKGROUND_WRITES, ("deleted",))


def delete_named(downstream: Downstream, task: Task, selector: Selector) -> None:
    """Delete the objects named by an upstream request that have the rule's labels.

    The other objects of a deleted policy are deleted by policy_events.py.
    """
    if task.request is None or not task.deletes:
        return
    named = task.request.status.generated_resources or ()
    kinds = {(one.api_version, one.kind) for one in named}
    places = {(one.kind, one.namespace, one.name) for one in named}
    refusals = Refusals()
    with refusals.kept():
        for found in downstream.find(selector, kinds):
            if found.place in places:
                with refusals.kept():
                    downstream.delete(found, selector)
    refusals.tell()
