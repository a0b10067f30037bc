"""Build the UpdateRequests of one recorded review.

Room: queues. Takes: TriggerRecord, our namespace. Gives: documents whose names are
derived from their content; the names of their annotations. Next:
leader/triggers/writer.py, background/hand_over.py write them.
Source: docs/behaviour/controllers 1.4, 5.1 (names of labels); docs/pools.md 3.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from kyverno_mp.kube.resource import Resource
from kyverno_mp.queues.triggers import (
    UNPROVED_ROLE,
    TriggerObject,
    TriggerRecord,
    Wanted,
)
from kyverno_mp.values.jsonvalue import Json

UPDATE_REQUESTS: Final = Resource(
    group="kyverno.io", version="v2", plural="updaterequests", kind="UpdateRequest"
)
SEEN_VERSION: Final = "kyverno-mp.io/trigger-resource-version"
"""Annotation: the trigger's resourceVersion before the reviewed request. While the
trigger has this version, the request is not stored yet."""
RECORDED: Final = "kyverno-mp.io/recorded-at"
"""Annotation: when the last of the requests was recorded, in nanoseconds. A repeated
request thus creates a new version of the UpdateRequest."""
CHANGED: Final = "kyverno-mp.io/changed-object"
"""Annotation: the clone source or generated object that was changed, as JSON: its
identity, its ``role``, the ``operation``, and its previous ``version``."""
LOST_SINCE: Final = "kyverno-mp.io/lost-since"
"""Annotation: the time since when the policy's triggers are lost, in nanoseconds."""
UNPROVED: Final = "kyverno-mp.io/unproved"
"""Annotation: the reviews that may have triggered the policy had no proof."""
UNCHECKED: Final = "kyverno-mp.io/unchecked"
"""Annotation: the conditions of a policy without rules were not evaluated."""
_MUTATE: Final = "mutate"
CEL_MUTATE: Final = "cel-mutate"
_GENERATE_POLICY: Final = "generate.kyverno.io/policy-name"
_MUTATE_LABEL: Final = "mutate.updaterequest.kyverno.io/"
_LABEL_MAX: Final = 63
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9_.-]")
_NAME_CHARACTERS: Final = 40


def name_of(record: TriggerRecord, part: Wanted) -> str:
    """Return a name that depends only on the rules, the trigger and the operation."""
    trigger = record.trigger
    parts = [part.type, part.policy, *part.rules, str(part.deletes)]
    parts += [record.role, record.operation, trigger.api_version, trigger.kind]
    parts += [trigger.namespace, record.who]
    if part.unchecked:
        parts.append(UNCHECKED)
    if record.changed is not None:
        changed = record.changed
        parts += [changed.kind, changed.namespace, changed.name]
    parts_json = msgspec.json.encode(parts)
    return f"ur-{hashlib.sha256(parts_json).hexdigest()[:_NAME_CHARACTERS]}"


def names_of(record: TriggerRecord) -> list[str]:
    """Return the names of all UpdateRequests of a record."""
    return [name_of(record, part) for part in record.wanted]


def since_of(recorded: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the time since when triggers are lost: the earlier of both times."""
    times = [
        int(annotations[LOST_SINCE])
        for annotations in (recorded, new)
        if annotations.get(LOST_SINCE)
    ]
    return {LOST_SINCE: str(min(times))} if times else {}


def document_of(record: TriggerRecord, part: Wanted, namespace: str) -> Json:
    """Return the UpdateRequest of one part of a record."""
    annotations = {RECORDED: str(record.at_ns)}
    if record.trigger.version:
        annotations[SEEN_VERSION] = record.trigger.version
    if record.changed is not None:
        annotations.pop(SEEN_VERSION, None)
        annotations[CHANGED] = msgspec.json.encode(_changed(record)).decode()
    if part.unchecked:
        annotations[UNCHECKED] = "true"
    if record.is_of_policy:
        annotations[LOST_SINCE] = str(record.at_ns)
    if record.role == UNPROVED_ROLE:
        annotations[UNPROVED] = "true"
    return {
        "apiVersion": UPDATE_REQUESTS.api_version,
        "kind": UPDATE_REQUESTS.kind,
        "metadata": {
            "name": name_of(record, part),
            "namespace": namespace,
            "labels": _labels(record, part),
            "annotations": annotations,
        },
        "spec": _spec(record, part),
    }


def _changed(record: TriggerRecord) -> Json:
    assert record.changed is not None
    changed = record.changed
    return {
        **_identity(changed),
        "role": record.role,
        "operation": record.operation,
        "version": changed.version,
    }


def _labels(record: TriggerRecord, part: Wanted) -> dict[str, str]:
    if part.type == CEL_MUTATE:
        # KYVERNO: UpdateRequests from admission have no labels.
        return {}
    _, _, policy = part.policy.rpartition("/")
    if part.type != _MUTATE:
        return {_GENERATE_POLICY: _cut(policy)}
    trigger = record.trigger
    values = {
        "policy-name": policy,
        "trigger-name": trigger.name,
        "trigger-namespace": trigger.namespace,
        "trigger-kind": trigger.kind,
        "trigger-apiversion": trigger.api_version.replace("/", "-"),
    }
    return {f"{_MUTATE_LABEL}{name}": _cut(value) for name, value in values.items()}


def _cut(value: str) -> str:
    """Return a valid label value for a name, e.g. of a ClusterRole with colons.

    Otherwise, the API server would reject the UpdateRequest, as it does upstream's.
    """
    return _NOT_IN_LABELS.sub("-", value)[:_LABEL_MAX].strip("-_.")


def _spec(record: TriggerRecord, part: Wanted) -> Json:
    trigger = _identity(record.trigger)
    spec: dict[str, Json] = {
        "requestType": part.type,
        "policy": part.policy,
        "context": _context(record, part),
    }
    if part.type in (_MUTATE, CEL_MUTATE):
        # K8S: the schema requires both of these fields.
        rule = "".join(part.rules[:1])
        fields = {"rule": rule, "resource": trigger, "deleteDownstream": False}
        return {**spec, **fields}
    rules = [
        {
            "rule": rule,
            "deleteDownstream": part.deletes,
            "synchronize": part.synchronize,
            "trigger": trigger,
        }
        for rule in part.rules
    ]
    none = {"rule": "", "resource": {}, "deleteDownstream": False}
    return {**spec, **none, "ruleContext": rules}


def _identity(trigger: TriggerObject) -> dict[str, str]:
    fields = {
        "apiVersion": trigger.api_version,
        "kind": trigger.kind,
        "namespace": trigger.namespace,
        "name": trigger.name,
        "uid": trigger.uid,
    }
    return {name: value for name, value in fields.items() if value}


def _context(record: TriggerRecord, part: Wanted) -> Json:
    if record.role:
        # The request was for another object than the trigger.
        return {}
    review: dict[str, Json] = msgspec.json.decode(record.review)
    user = review.get("userInfo") or {}
    if part.with_objects and record.objects:
        review.update(msgspec.json.decode(record.objects))
    return {
        "userInfo": {
            "roles": list(record.roles),
            "clusterRoles": list(record.cluster_roles),
            "userInfo": user,
        },
        "admissionRequestInfo": {
            "admissionRequest": review,
            "operation": record.operation,
        },
    }
