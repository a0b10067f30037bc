"""Convert one policy document to the current schema, without changing its meaning.

Room: cli. Takes: a raw policy. Gives: the same document, changed, and messages.
Next: fix. May touch: its argument. Source: docs/behaviour/cli 18.
"""

from typing import Final

from kyverno_mp.values.jsonvalue import Json

_INLINE: Final = ("resources", "subjects", "roles", "clusterRoles")
_OPERATORS: Final = {
    "Equal": "Equals",
    "NotEqual": "NotEquals",
    "In": "AllIn",
    "NotIn": "AnyNotIn",
}
_NO_CONDITIONS: Final = frozenset(
    {"matchExpressions", "pattern", "anyPattern", "patchStrategicMerge", "data"}
)
"""Fields whose content may look like a condition, but is data."""
_WRITTEN_BY_CLUSTER: Final = ("creationTimestamp", "generation", "uid")


def fix_policy(raw: dict[str, Json]) -> list[str]:
    """Change the document in place; return a message for each change."""
    messages: list[str] = []
    spec = raw.get("spec")
    if type(spec) is not dict or type(spec.get("rules") or []) is not list:
        return messages
    _fix_action(spec, "validationFailureAction", messages)
    for rule in spec.get("rules") or []:
        if type(rule) is not dict:
            continue
        messages += [
            f"{name} uses old syntax, moving to any"
            for name in ("match", "exclude")
            if _move_inline(rule.get(name))
        ]
        _fix_action(rule.get("validate"), "failureAction", messages)
        if type(rule.get("preconditions")) is list:
            rule["preconditions"] = {"all": rule["preconditions"]}
            messages.append("preconditions use old syntax, moving to all")
        _fix_operators(rule, messages)
    _prune(raw)
    return messages


def _fix_action(block: Json, name: str, messages: list[str]) -> None:
    action = block.get(name) if type(block) is dict else None
    if type(action) is str and action in ("enforce", "audit"):
        block[name] = action.capitalize()
        messages.append(f"{name} uses old value `{action}`, updating")


def _move_inline(block: Json) -> bool:
    """Move the block's own fields into a filter of ``any``."""
    if type(block) is not dict:
        return False
    moved = {name: block.pop(name) for name in _INLINE if name in block}
    kept = {name: value for name, value in moved.items() if value}
    if not kept:
        return False
    given = block.get("any")
    block["any"] = [*(given if type(given) is list else []), kept]
    return True


def _fix_operators(value: Json, messages: list[str]) -> None:
    if type(value) is dict:
        operator = value.get("operator")
        if "key" in value and type(operator) is str and operator in _OPERATORS:
            value["operator"] = _OPERATORS[operator]
            messages.append(f"condition uses old operator `{operator}`, updating")
        for key, item in value.items():
            if key not in _NO_CONDITIONS:
                _fix_operators(item, messages)
    elif type(value) is list:
        for item in value:
            _fix_operators(item, messages)


def _prune(raw: dict[str, Json]) -> None:
    """Remove fields that only the API server sets, and empty blocks."""
    raw.pop("status", None)
    metadata = raw.get("metadata")
    if type(metadata) is dict:
        for name in _WRITTEN_BY_CLUSTER:
            metadata.pop(name, None)
    for rule in raw["spec"].get("rules") or []:
        if type(rule) is dict:
            for name in ("match", "exclude", "mutate", "generate", "validate"):
                if name in rule and not rule[name]:
                    del rule[name]
