"""Build the objects of one generate pattern: data, a clone, or many clones.

Room: program.generate. Takes: a linked pattern, a scope, the trigger. Gives: Generated.
Next: program/generate/rule. May touch: the cluster's objects through program/ports.
Source: docs/behaviour/controllers 5.3 (labels), 5.4.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.generate.labels import without_tracking
from kyverno_mp.program.generate.sources import (
    find_source,
    keep_clone_within,
    list_sources,
)
from kyverno_mp.program.generate.target import DownstreamTarget, target_of, text_of
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.own_namespace import is_outside
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.selector import labels_of

_MAP_STEPS: Final = 4
"""Minimum charge for copying a map."""
_PREFIX: Final = "generate.kyverno.io/"
_NOT_COPIED: Final = (
    "uid",
    "selfLink",
    "creationTimestamp",
    "managedFields",
    "resourceVersion",
)


@dataclass(frozen=True, slots=True)
class Generated:
    """One object to create; ``source`` is the object that it is cloned from."""

    target: DownstreamTarget
    resource: dict[str, Json]
    source: dict[str, Json] | None = None


def make(
    pattern: Mapping[str, Json],
    scope: RuleContext,
    policy: PolicyIR,
    rule: str,
    trigger: dict[str, Json],
) -> Iterator[Generated]:
    """Yield the objects of a substituted pattern. Raises: ExpressionFailed.

    KYVERNO: a pattern without any of the three bodies yields an empty object, and an
    object that would be a clone of itself is skipped (docs/behaviour/controllers 5.4).
    """
    target = target_of(pattern)
    labels = _labels(policy, rule, trigger)
    clone = pattern.get("clone") or {}
    clone_list = pattern.get("cloneList") or {}
    if not clone_list.get("kinds") or clone.get("name"):
        _keep_within(policy, target)
    if clone.get("name"):
        named = (text_of(clone, "namespace"), text_of(clone, "name"))
        clone_source = target._replace(namespace=named[0], name=named[1])
        if clone_source == target:
            return
        keep_clone_within(scope, clone_source)
        source = find_source(scope, clone_source, target)
        yield _cloned(source, target, labels, scope.runtime)
    elif clone_list.get("kinds"):
        for source in list_sources(scope, clone_list):
            metadata = metadata_of(source)
            of_source = target._replace(
                api_version=source.get("apiVersion", ""),
                kind=source.get("kind", ""),
                name=metadata.get("name", ""),
            )
            if metadata.get("namespace", "") == target.namespace:
                continue
            _keep_within(policy, of_source)
            yield _cloned(source, of_source, labels, scope.runtime)
    else:
        data = pattern.get("data")
        body = data if isinstance(data, dict) else {}
        yield Generated(target, _named(body, target, labels, scope.runtime))


def _keep_within(policy: PolicyIR, target: DownstreamTarget) -> None:
    """Refuse writes outside the namespace of a namespaced policy (lessons 4.2)."""
    policy_namespace = policy.namespace
    if is_outside(policy_namespace, target.namespace):
        raise ExpressionFailed(
            "generate.namespace",
            "a namespaced policy cannot generate resources in other namespaces, "
            f"expected: {policy_namespace}, received: {target.namespace}",
        )


def _named(
    body: dict[str, Json],
    target: DownstreamTarget,
    labels: Mapping[str, str],
    runtime: Runtime,
) -> dict[str, Json]:
    """Return the body with the target's name and the labels."""
    body_metadata = metadata_of(body)
    _charge_copies(runtime, body, body_metadata, body_metadata.get("labels"), labels)
    metadata = {**body_metadata}
    for key, value in (("name", target.name), ("namespace", target.namespace)):
        metadata.pop(key, None)
        if value:
            metadata[key] = value
    metadata.pop("resourceVersion", None)
    metadata["labels"] = {**labels_of(metadata.get("labels")), **labels}
    return {
        **body,
        "apiVersion": target.api_version,
        "kind": body.get("kind") or target.kind,
        "metadata": metadata,
    }


def _charge_copies(runtime: Runtime, *maps: Json) -> None:
    """Charge for copies of these maps; copies share their values with the originals."""
    for each in maps:
        if isinstance(each, Mapping):
            runtime.charge_entries(_MAP_STEPS + len(each))


def _cloned(
    source: dict[str, Json],
    target: DownstreamTarget,
    labels: Mapping[str, str],
    runtime: Runtime,
) -> Generated:
    source_metadata = metadata_of(source)
    _charge_copies(
        runtime,
        source,
        source_metadata,
        source_metadata.get("labels"),
        source_metadata.get("annotations"),
    )
    metadata = without_tracking({**source_metadata})
    group, _, version = str(source.get("apiVersion", "")).rpartition("/")
    of_source = {
        f"{_PREFIX}clone-source": "",
        f"{_PREFIX}source-group": group,
        f"{_PREFIX}source-version": version,
        f"{_PREFIX}source-kind": source.get("kind", ""),
        f"{_PREFIX}source-namespace": metadata.get("namespace", ""),
        f"{_PREFIX}source-uid": metadata.get("uid", ""),
    }
    for key in _NOT_COPIED:
        metadata.pop(key, None)
    if metadata.get("namespace", "") != target.namespace:
        metadata.pop("ownerReferences", None)
    body = {**source, "metadata": metadata}
    labels = {**of_source, **labels}
    return Generated(target, _named(body, target, labels, runtime), source)


def _labels(policy: PolicyIR, rule: str, trigger: dict[str, Json]) -> dict[str, str]:
    metadata = metadata_of(trigger)
    group, _, version = str(trigger.get("apiVersion", "")).rpartition("/")
    return {
        "app.kubernetes.io/managed-by": "kyverno",
        f"{_PREFIX}policy-name": policy.name,
        f"{_PREFIX}policy-namespace": policy.namespace,
        f"{_PREFIX}rule-name": rule,
        f"{_PREFIX}trigger-group": group,
        f"{_PREFIX}trigger-kind": trigger.get("kind", ""),
        f"{_PREFIX}trigger-namespace": metadata.get("namespace", ""),
        f"{_PREFIX}trigger-uid": metadata.get("uid", ""),
        f"{_PREFIX}trigger-version": version,
    }
