"""Rewrite one rule on Pods into rules on controllers and on CronJobs.

Room: compiler. Takes: a Rule, the controllers' names as one string. Gives: at most two
Rules.
Next: compiler/autogen/rules.py.
Source: docs/behaviour/engine 2.2; Kyverno pkg/autogen/v1/rule.go at v1.18.2.

The module rewrites the rule's JSON text, because upstream replaces paths everywhere in
that text and decodes the result again.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
import re2

from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.kinds import contains_kind
from kyverno_mp.values.jsonvalue import Json

_RULE: Final = msgspec.json.Decoder(Rule)
_NAME_BYTES_MAX: Final = 63
GVK_OF: Final = {
    "DaemonSet": "apps/v1/DaemonSet",
    "Deployment": "apps/v1/Deployment",
    "Job": "batch/v1/Job",
    "StatefulSet": "apps/v1/StatefulSet",
    "ReplicaSet": "apps/v1/ReplicaSet",
    "ReplicationController": "v1/ReplicationController",
    "CronJob": "batch/v1/CronJob",
    "Pod": "v1/Pod",
}
_TEMPLATED: Final = frozenset(GVK_OF) - {"CronJob", "Pod"}
_ALL_TEMPLATED: Final = (
    "DaemonSet,Deployment,Job,StatefulSet,ReplicaSet,ReplicationController"
)
_KEPT: Final = frozenset(
    {
        "name",
        "match",
        "exclude",
        "context",
        "preconditions",
        "celPreconditions",
        "mutate",
        "validate",
        "verifyImages",
        "skipBackgroundRequests",
        "reportProperties",
    }
)
_VALIDATE_KEPT: Final = (
    "failureAction",
    "failureActionOverrides",
    "allowExistingViolations",
)
_REFERENCE = re2.compile(r"^\$\(.[^\ ]*\)|[^\\]\$\(.[^\ ]*\)")


def _replacements(prefix: str, shift: str) -> tuple[tuple[bytes, bytes], ...]:
    pairs = []
    for part in ("spec", "metadata"):
        for name in ("object", "oldObject"):
            head = f"{prefix}{name}."
            pairs.append((f"{head}{part}".encode(), f"{head}{shift}.{part}".encode()))
    return tuple(pairs)


_POD: Final = "spec.template"
_CRON: Final = "spec.jobTemplate.spec.template"
_TEXTS: Final = {
    (shift, is_cel): _replacements("" if is_cel else "request.", shift)
    for shift in (_POD, _CRON)
    for is_cel in (False, True)
}


_RULE_STEPS: Final = 20
_BYTES_A_STEP: Final = 64
"""A rule is copied four times: as JSON and as a document."""


def rules_for_controllers(rule: Rule, controllers: str) -> list[Rule]:
    """Return the autogen rules of one rule: for controllers, then for CronJobs.

    ``controllers`` is the sorted list of names, joined by commas as upstream does.
    """
    raw = rule.raw()
    spend(_RULE_STEPS + len(msgspec.json.encode(raw)) // _BYTES_A_STEP)
    generated: list[Rule] = []
    templated = ",".join(name for name in controllers.split(",") if name != "CronJob")
    if templated:
        generated += _convert(_for_templates(raw, templated), _POD)
    if "CronJob" in controllers or "all" in controllers:
        inner = _for_templates(raw, controllers)
        if inner is not None:
            name = _name("autogen-cronjob", rule.name)
            outer = _generate(
                inner, name, "jobTemplate", ["CronJob"], every_filter=True
            )
            generated += _convert(outer, _CRON)
    return generated


def _for_templates(raw: dict[str, Json], controllers: str) -> dict[str, Json] | None:
    if controllers == "all":
        controllers = _ALL_TEMPLATED
    names = sorted(controllers.split(","))
    templated = [name for name in names if name in _TEMPLATED]
    name = _name("autogen", raw["name"])
    return _generate(raw, name, "template", templated or names, every_filter=False)


def _name(prefix: str, name: str) -> str:
    encoded = f"{prefix}-{name}".encode()
    return encoded[:_NAME_BYTES_MAX].decode(errors="replace")


def _convert(raw: dict[str, Json] | None, shift: str) -> list[Rule]:
    """Replace paths in the JSON text of the whole rule, then decode it again.

    If the result is not a valid rule, the rule is omitted, as upstream does.
    """
    if raw is None:
        return []
    fields = {key: value for key, value in raw.items() if key in _KEPT}
    is_cel = "cel" in fields.get("validate", {})
    data = msgspec.json.encode(_without_empty_conditions(fields))
    for old, new in _TEXTS[shift, is_cel]:
        data = data.replace(old, new)
    try:
        return [_RULE.decode(data)]
    except msgspec.ValidationError:
        return []


def _without_empty_conditions(raw: dict[str, Json]) -> dict[str, Json]:
    # KYVERNO: conditions pass through Go's omitempty: an empty ``any`` is false in the
    # original rule, but it is dropped from the generated rule, whose condition is then
    # true (docs/behaviour/engine 2.2).
    cleaned = dict(raw)
    if "preconditions" in raw:
        cleaned["preconditions"] = _conditions(raw["preconditions"])
        if not cleaned["preconditions"]:
            del cleaned["preconditions"]
    deny = raw.get("validate", {}).get("deny")
    if deny and "conditions" in deny:
        conditions = _conditions(deny["conditions"])
        cleaned["validate"] = {**raw["validate"], "deny": {"conditions": conditions}}
    return cleaned


def _conditions(raw: Json) -> Json:
    if type(raw) is not dict:
        return raw
    return {
        key: value for key, value in raw.items() if value or key not in ("any", "all")
    }


def _generate(
    raw: dict[str, Json],
    name: str,
    template: str,
    kinds: Iterable[str],
    *,
    every_filter: bool,
) -> dict[str, Json] | None:
    """Build the rule for ``kinds``; None if this rule type has no autogen."""
    body = _mutate_body(raw, template) or _validate_body(raw, template)
    if body is None:
        if not raw.get("verifyImages"):
            return None
        body = {}
    gvks = [GVK_OF.get(kind, kind) for kind in kinds]
    generated = {**raw, **body, "name": name}
    generated["match"] = _with_kinds(raw["match"], gvks, every_filter, is_match=True)
    if "exclude" in raw:
        generated["exclude"] = _with_kinds(
            raw["exclude"], gvks, every_filter, is_match=False
        )
    return generated


def _with_kinds(
    block: dict[str, Json],
    gvks: list[str],
    every_filter: bool,  # noqa: FBT001 - private, passed through
    *,
    is_match: bool,
) -> dict[str, Json]:
    for mode in ("any", "all"):
        if block.get(mode):
            filters = [_filter(entry, gvks, every_filter) for entry in block[mode]]
            return {**block, mode: filters}
    resources = block.get("resources", {})
    if not is_match and not resources.get("kinds"):
        return block
    return {**block, "resources": {**resources, "kinds": gvks}}


def _filter(
    entry: dict[str, Json],
    gvks: list[str],
    every_filter: bool,  # noqa: FBT001 - private, passed through
) -> dict[str, Json]:
    resources = entry.get("resources", {})
    if not every_filter and not contains_kind(resources.get("kinds", ()), "Pod"):
        return entry
    return {**entry, "resources": {**resources, "kinds": gvks}}


def _wrap(value: Json, template: str) -> dict[str, Json]:
    return {"spec": {template: value}}


def _mutate_body(raw: dict[str, Json], template: str) -> dict[str, Json] | None:
    mutate = raw.get("mutate", {})
    if "patchStrategicMerge" in mutate:
        patch = _wrap(mutate["patchStrategicMerge"], template)
        return {"mutate": {"patchStrategicMerge": patch}}
    if mutate.get("foreach"):
        entries = [_mutate_entry(entry, template) for entry in mutate["foreach"]]
        return {"mutate": {"foreach": entries}}
    return None


def _mutate_entry(entry: dict[str, Json], template: str) -> dict[str, Json]:
    fields = {
        key: value
        for key, value in entry.items()
        if key in ("list", "context", "preconditions")
    }
    patch = _wrap(entry.get("patchStrategicMerge"), template)
    return {**fields, "patchStrategicMerge": patch}


def _validate_body(raw: dict[str, Json], template: str) -> dict[str, Json] | None:
    validate = raw.get("validate")
    if validate is None:
        return None
    shift = (
        "spec/template" if template == "template" else "spec/jobTemplate/spec/template"
    )
    pattern, alternatives = validate.get("pattern"), validate.get("anyPattern")
    if pattern is not None:
        body: dict[str, Json] = {"pattern": _wrap(pattern, template)}
        return _validate(validate, body, shift, "pattern")
    if "deny" in validate:
        return _validate(validate, {"deny": validate["deny"]}, shift, "deny")
    if "podSecurity" in validate:
        body = {"podSecurity": validate["podSecurity"]}
        return _validate(validate, body, shift, "podSecurity")
    if alternatives is not None:
        listed = alternatives if type(alternatives) is list else []
        # KYVERNO: an empty list is dropped, so the generated rule has no body and the
        # policy is rejected.
        wrapped = [_wrap(pattern, template) for pattern in listed]
        body = {"anyPattern": wrapped} if wrapped else {}
        return _validate(validate, body, shift, "anyPattern")
    if validate.get("foreach"):
        return _validate(validate, {"foreach": validate["foreach"]}, shift, "pattern")
    if "cel" in validate:
        return {"validate": validate}
    if validate.get("assert"):
        return {
            "validate": {**validate, "assert": _assert(validate["assert"], template)}
        }
    return None


def _validate(
    validate: dict[str, Json], body: dict[str, Json], shift: str, pivot: str
) -> dict[str, Json]:
    fields: dict[str, Json] = {
        key: validate[key] for key in _VALIDATE_KEPT if key in validate
    }
    message = shift_references(validate.get("message", ""), shift, pivot)
    if message:
        fields["message"] = message
    return {"validate": {**fields, **body}}


def _assert(tree: dict[str, Json], template: str) -> dict[str, Json]:
    wrapped = dict(tree)
    for key in ("object", "oldObject"):
        if type(tree.get(key)) is dict:
            wrapped[key] = _wrap(tree[key], template)
    return wrapped


def shift_references(message: str, shift: str, pivot: str) -> str:
    """Extend the ``$(...)`` references of a message by the path to the pod template.

    KYVERNO: a CronJob's message is shifted twice, once per generated rule, and the
    first reference in an anyPattern message sets the pivot for all later references.
    """
    for written in _REFERENCE.findall(message):
        is_initial = written.startswith("$(")
        reference = written if is_initial else written[1:]
        if pivot == "anyPattern":
            start = reference.find(pivot) + len(pivot) + 1
            pivot = f"{pivot}/{reference[start:].split('/')[0]}"
        shifted = reference.replace(pivot, f"{pivot}/{shift}")
        replacement = shifted if is_initial else written[0] + shifted
        message = message.replace(written, replacement, 1)
    return message
