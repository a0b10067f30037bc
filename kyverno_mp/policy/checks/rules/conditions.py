"""Check preconditions and deny conditions of one rule.

Room: policy. Takes: a Rule and its index. Gives: problems, and warnings on deprecated
operators. Next: policy/check.py.
Source: docs/behaviour/engine 10.6 (condition parts, operators, request.operation), 4.2.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kyverno_mp.expr.conditions.operators import OPERATORS
from kyverno_mp.policy.checks.rules.subject import Problems, plain
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.image_verification import Deny
from kyverno_mp.policy.fields.validation import ForEachValidation
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.jsonvalue import Json

_REPLACEMENTS: Final = {"In": '["AllIn" "AnyIn"]', "NotIn": '["AllNotIn" "AnyNotIn"]'}
_OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT")
_MISSING: Final = (
    "entered value of `key`, `value` or `operator` is missing or misspelled"
)
_KINDS: Final = {bool: "bool", int: "int64", float: "float64", dict: "map"}


class _Block(NamedTuple):
    """Conditions of a rule; ``name`` is their position as upstream prints it."""

    raw: Json
    name: str
    path: str
    is_strict: bool


def check_conditions(rule: Rule, index: int) -> Problems:
    """Check all conditions of a rule, including those of nested foreach entries."""
    rule_path = f"spec.rules[{index}]"
    for block in _blocks(rule):
        path = f"{rule_path}.{block.path}"
        if not _is_conditions(block.raw):
            message = "failed to unmarshal Conditions"
            yield Problem("policy.wrong_type", path, rule.name, message)
            continue
        block_path = f"{rule_path}.{block.name}"
        if block.is_strict:
            for condition_path, condition in _listed(block.raw):
                tail, message = _check_parts(condition)
                if message:
                    reason = f"path: {block_path}{condition_path}.{tail}: {message}"
                    yield plain(path, rule.name, reason, "policy.condition")
        for place_of, condition in _listed(block.raw):
            if condition.get("operator", "") not in OPERATORS:
                # KYVERNO: entries of ``all`` are printed as ``any`` (10.6).
                condition_path = place_of.replace(".all[", ".any[")
                reason = f"path: {block_path}{condition_path}.: {_operator_text()}"
                yield plain(path, rule.name, reason, "policy.condition")


def deprecated_operators(rule: Rule) -> Iterator[str]:
    """Warn about In and NotIn in deny and foreach, not in rule preconditions."""
    for block in _blocks(rule):
        if block.path == "preconditions" or not _is_conditions(block.raw):
            continue
        if block.path.count("foreach") > 1 or block.path.startswith("mutate"):
            continue
        for _, condition in _listed(block.raw):
            operator = condition.get("operator")
            if type(operator) is str and operator in _REPLACEMENTS:
                yield (
                    f"Operator {operator} has been deprecated and will be removed "
                    f"soon. Use these instead: {_REPLACEMENTS[operator]}"
                )


def _blocks(rule: Rule) -> Iterator[_Block]:
    if rule.preconditions is not None:
        name = "validate.preconditions"
        yield _Block(rule.preconditions, name, "preconditions", is_strict=True)
    if rule.validate is not None:
        yield from _deny(rule.validate.deny, "validate.deny", is_strict=True)
        yield from _foreach(rule.validate.foreach or (), "validate.foreach")
    for index, entry in enumerate((rule.mutate and rule.mutate.foreach) or ()):
        if entry.preconditions is not None:
            name = "mutate.foreach.conditions"
            path = f"mutate.foreach[{index}].preconditions"
            yield _Block(entry.preconditions.raw(), name, path, is_strict=False)
    for index, image in enumerate(rule.verify_images):
        for attestation in image.attestations:
            for conditions in attestation.conditions:
                name = "verifyImages.attestations.conditions"
                path = f"verifyImages[{index}].attestations.conditions"
                yield _Block(conditions.raw(), name, path, is_strict=False)
        if image.validate is not None:
            name = "imageVerify.validate.deny"
            yield from _deny(image.validate.deny, name, is_strict=True)


def _foreach(entries: Iterable[ForEachValidation], path: str) -> Iterator[_Block]:
    for index, entry in enumerate(entries):
        entry_path = f"{path}[{index}]"
        if entry.preconditions is not None:
            raw = entry.preconditions.raw()
            name = "validate.foreach.conditions"
            yield _Block(raw, name, f"{entry_path}.preconditions", is_strict=False)
        yield from _deny(entry.deny, f"{entry_path}.deny", is_strict=False)
        yield from _foreach(entry.foreach or (), f"{entry_path}.foreach")


def _deny(deny: Deny | None, path: str, *, is_strict: bool) -> Iterator[_Block]:
    if deny is not None and deny.conditions is not None:
        name = path if is_strict else "validate.foreach.deny"
        path = f"{path}.conditions"
        yield _Block(deny.conditions, f"{name}.conditions", path, is_strict=is_strict)


def _is_conditions(raw: Json) -> bool:
    if type(raw) is list:
        return all(type(entry) is dict for entry in raw)
    if type(raw) is not dict:
        return False
    listed = [raw[mode] for mode in ("any", "all") if raw.get(mode) is not None]
    return all(
        type(entry) is list and all(type(item) is dict for item in entry)
        for entry in listed
    )


def _listed(raw: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    if type(raw) is list:
        for index, condition in enumerate(raw):
            yield f"[{index}]", condition
        return
    for mode in ("any", "all"):
        for index, condition in enumerate(raw.get(mode) or ()):
            yield f".{mode}[{index}]", condition


def _check_parts(condition: dict[str, Json]) -> tuple[str, str]:
    key, value = condition.get("key"), condition.get("value")
    if key is None or value is None or not condition.get("operator"):
        return "", _MISSING
    if type(key) is not str or key.replace(" ", "") != "{{request.operation}}":
        return "", ""
    return _check_operation(value)


def _check_operation(value: Json) -> tuple[str, str]:
    if type(value) is str:
        is_variable = len(value) >= len("{{}}") and value[:2] + value[-2:] == "{{}}"
        if is_variable or value in _OPERATIONS:
            return "", ""
        return f"value: {value}", _unknown_operation(value)
    if type(value) is list:
        for index, item in enumerate(value):
            if item not in _OPERATIONS:
                return f"value[{index}]", _unknown_operation(item)
        return "", ""
    kind = _KINDS[type(value)]
    return "value", (
        f"'value' field found to be of the type {kind}. The provided value/values are "
        "expected to be either in the form of a string or list"
    )


def _unknown_operation(value: Json) -> str:
    return (
        f"unknown value '{value}' found under the 'value' field. Only the following "
        f"values are allowed: [{', '.join(_OPERATIONS)}]"
    )


def _operator_text() -> str:
    names = " ".join(f'"{name}"' for name in OPERATORS)
    return f"entered value of `operator` is invalid. valid values: [{names}]"
