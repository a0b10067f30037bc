"""Reduce a policy to what it matches, for policies that the leader cannot keep.

Room: leader. Takes: a policy as JSON. Gives: its outline, another document of the same
policy, and whether a document is one. Next: leader/documents/source_room.py decides
which; leader/documents/outlined.py gives them their status.

SAFETY: an outline is compiled as its policy would be, so webhooks are registered for
its kinds, and published as a stub that fails where the policy matches. A policy that
denies nothing has an outline without rules.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from kyverno_mp.limits import OUTLINE_BYTES_MAX
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import POLICY_KINDS

MARK: Final = "outlineOf"
"""The field with the size of the whole document. Documents of the API server come
without it (leader/cluster.py)."""
_Fields = dict[str, Any]
_NAMES: Final = ("name", "namespace", "uid", "generation", "deletionTimestamp")
_AUTOGEN: Final = "pod-policies.kyverno.io/autogen-controllers"
_OF_POLICY: Final = (
    "validationFailureAction",
    "validationFailureActionOverrides",
    "failurePolicy",
    "applyRules",
    "admission",
)
_SHORT: Final = ("failurePolicy", "admission", "webhookConfiguration", "background")
_OF_CEL: Final = ("matchConstraints", "failurePolicy", "validationActions")
_ROWS: Final = {row.namespaced.kind: row for row in POLICY_KINDS if row.segment}
_EVERYTHING: Final = {
    "resourceRules": [
        {
            "apiGroups": ["*"],
            "apiVersions": ["*"],
            "operations": ["*"],
            "resources": ["*/*"],
        }
    ]
}
_FALSE: Final = [{"expression": "false"}]
_BODIES: Final[Mapping[str, _Fields]] = {
    "validate": {"validations": _FALSE},
    "verifyImages": {
        "validations": _FALSE,
        "matchImageReferences": [{"glob": "*"}],
        "attestors": [
            {"name": "a", "cosign": {"key": {"expression": "'none'"}}},
        ],
    },
    "mutate": {
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": "Object{}"},
            }
        ]
    },
}


def outline_of(document: _Fields, size: int) -> bytes:
    """Return the outline, of at most OUTLINE_BYTES_MAX. ``size``: of the document."""
    metadata = document.get("metadata") or {}
    names = {name: metadata[name] for name in _NAMES if name in metadata}
    autogen = (metadata.get("annotations") or {}).get(_AUTOGEN)
    if isinstance(autogen, str):
        names["annotations"] = {_AUTOGEN: autogen}
    head = {
        MARK: size,
        "apiVersion": document.get("apiVersion"),
        "kind": document.get("kind"),
        "metadata": names,
    }
    while True:
        for spec in _specs(document):
            encoded = msgspec.json.encode({**head, "spec": spec})
            if len(encoded) <= OUTLINE_BYTES_MAX:
                return encoded
        if names.pop("annotations", None) is None:
            return msgspec.json.encode({**head, "spec": {"rules": []}})


def size_outlined(document: Json) -> int:
    """Return the size of the document of which this is an outline, otherwise 0."""
    return document.get(MARK) or 0 if isinstance(document, dict) else 0


def _specs(document: _Fields) -> Iterator[_Fields]:
    """Yield the specs that outlines can have, those that match most exactly first."""
    spec = document.get("spec")
    kind = str(document.get("kind"))
    if not isinstance(spec, dict):
        return
    row = _ROWS.get(kind)
    if row is None:
        return
    if not row.is_in_cel:
        yield from _of_policy(spec)
    elif row.rule_type in _BODIES:
        outline = {**_kept(spec, _OF_CEL), **_BODIES[row.rule_type]}
        yield outline
        yield {**outline, "matchConstraints": _EVERYTHING}


def _of_policy(spec: _Fields) -> Iterator[_Fields]:
    rules = [rule for rule in _list(spec.get("rules")) if _may_deny(rule)]
    webhook = spec.get("webhookConfiguration")
    head = _kept(spec, _OF_POLICY)
    if isinstance(webhook, dict):
        head["webhookConfiguration"] = _kept(webhook, ("failurePolicy",))
    head["background"] = False
    yield {**head, "rules": [_rule(rule) for rule in rules]}
    kinds = dict.fromkeys(_kinds_in([rule.get("match") for rule in rules]))
    if rules:
        yield {**head, "rules": [_rule_of_kinds(list(kinds))]}
        # Overrides of actions can be long, too.
        yield {**_kept(head, _SHORT), "rules": [_rule_of_kinds(["*"])]}


def _rule_of_kinds(kinds: list[str]) -> _Fields:
    return {
        "name": "all",
        "match": {"any": [{"resources": {"kinds": kinds}}]},
        "validate": {"failureAction": "Enforce", "message": "", "deny": {}},
    }


def _rule(rule: _Fields) -> _Fields:
    validate = rule.get("validate")
    action: _Fields = {"failureAction": "Enforce"}
    if isinstance(validate, dict):
        action = _kept(validate, ("failureAction", "failureActionOverrides"))
    deny = {**action, "message": "", "deny": {}}
    return {**_kept(rule, ("name", "match", "exclude")), "validate": deny}


def _may_deny(rule: Json) -> bool:
    if not isinstance(rule, dict):
        return False
    mutate = rule.get("mutate")
    changes = isinstance(mutate, dict) and not mutate.get("targets")
    return changes or "validate" in rule or "verifyImages" in rule


def _kinds_in(value: Json) -> Iterator[str]:
    """Yield the kinds of match blocks, at any depth that they can have."""
    pending = [value]
    while pending:
        block = pending.pop()
        if isinstance(block, list):
            pending += block
        elif isinstance(block, dict):
            kinds = block.get("kinds")
            yield from (kind for kind in _list(kinds) if isinstance(kind, str))
            pending += [block.get(name) for name in ("any", "all", "resources")]


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _kept(fields: _Fields, names: tuple[str, ...]) -> _Fields:
    return {name: fields[name] for name in names if name in fields}
