"""Evaluate condition operators slowly and plainly: the second opinion for conditions/.

Written from docs/behaviour/engine 4.3-4.9 as a list of cases per operator, with no
preparation for constants and no shortcuts. Quantities, durations and versions come from
values/.
"""

import json
import re
from fractions import Fraction

from kyverno_mp.expr.pattern.leaf import match_leaf
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.go.gotext import sprint
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import parse_quantity
from kyverno_mp.values.semver import parse_version

_SECOND = 10**9
_RANGE = re.compile(r"([-|+]?\d+(\.\d+)?[A-Za-z]*)-([-|+]?\d+(\.\d+)?[A-Za-z]*)")


def evaluate(operator: str, key: Json, value: Json) -> bool:
    """Evaluate one operator by its exact name."""
    if operator in {"Equal", "Equals"}:
        return equals(key, value)
    if operator in {"NotEqual", "NotEquals"}:
        return not_equals(key, value)
    if operator in {"AnyIn", "AllIn", "AnyNotIn", "AllNotIn"}:
        return membership(operator, key, value)
    if operator in {"In", "NotIn"}:
        return old_membership(operator, key, value)
    if operator.startswith("Duration"):
        return durations(operator.removeprefix("Duration"), key, value)
    return numeric(operator, key, value)


def is_milli(value: Json) -> bool:
    """Return whether ``m`` may be milli or minutes; a number decides for milli."""
    return type(value) is str and bool(
        re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)m", value)
    )


def milli_pair(key: Json, value: Json) -> tuple[Fraction, Fraction] | None:
    if is_milli(key) and is_number(value):
        return Fraction(key[:-1]) / 1000, Fraction(str(value))
    if is_number(key) and is_milli(value):
        return Fraction(str(key)), Fraction(value[:-1]) / 1000
    return None


def is_number(value: Json) -> bool:
    return type(value) in {int, float}


def wildcard(pattern: str, text: str) -> bool:
    rows = {0}
    for char in pattern:
        if char == "*":
            rows = set(range(min(rows), len(text) + 1)) if rows else set()
        else:
            rows = {
                row + 1 for row in rows if row < len(text) and char in {"?", text[row]}
            }
    return len(text) in rows


def both_ways(left: str, right: str) -> bool:
    return wildcard(left, right) or wildcard(right, left)


def number_of(text: str) -> float | None:
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        return None
    return float(text)


def duration_pair(key: Json, value: Json) -> tuple[int, int] | None:
    if milli_pair(key, value):
        return None
    found = []
    texts = 0
    for side in (key, value):
        if type(side) is str and side != "0" and parse_duration(side) is not None:
            texts += 1
            found.append(parse_duration(side) or 0)
        elif is_number(side):
            found.append(int(side) * _SECOND)
        else:
            return None
    return (found[0], found[1]) if texts else None


def deep_equal(left: Json, right: Json) -> bool:
    if type(left) is not type(right):
        return False
    if type(left) is list:
        return len(left) == len(right) and all(map(deep_equal, left, right))
    if type(left) is dict:
        return left.keys() == right.keys() and all(
            deep_equal(left[k], right[k]) for k in left
        )
    return bool(left == right)


def equals(key: Json, value: Json) -> bool:
    if type(key) in {bool, list, dict}:
        return deep_equal(key, value)
    if type(key) is int:
        if type(value) is str:
            return bool(re.fullmatch(r"[+-]?[0-9]+", value)) and int(value) == key
        return is_number(value) and value == key
    if type(key) is float:
        if type(value) is str:
            return number_of(value) == key
        return is_number(value) and value == key
    if type(key) is not str:
        return False
    pair = duration_pair(key, value)
    if pair:
        return pair[0] == pair[1]
    exact = milli_pair(key, value)
    if exact:
        return exact[0] == exact[1]
    if type(value) is not str:
        return False
    amount = parse_quantity(key)
    if amount is not None:
        other = parse_quantity(value)
        return other is not None and amount == other
    return wildcard(value, key)


def not_equals(key: Json, value: Json) -> bool:
    if key is None:
        return False
    return not equals(key, value)


def scalar(key: Json) -> str | None:
    return sprint(key) if type(key) in {str, int, float, bool} else None


def string_list(text: str) -> list[str] | None:
    decoded = json.loads(text)
    if decoded is None:
        return []
    if type(decoded) is not list:
        return None
    strings = ["" if item is None else item for item in decoded]
    return strings if all(type(item) is str for item in strings) else None


def is_json(text: str) -> bool:
    def refuse(_name: str) -> None:
        raise ValueError

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def membership(operator: str, key: Json, value: Json) -> bool:
    if type(key) is list:
        return list_membership(operator, [sprint(item) for item in key], value)
    text = scalar(key)
    if text is None:
        return False
    exists: bool
    if type(value) is list:
        exists = any(both_ways(sprint(item), text) for item in value)
    elif type(value) is not str:
        return False
    elif wildcard(value, text):
        exists = True
    elif _RANGE.fullmatch(value):
        exists = match_leaf(text, value)
    elif is_json(value):
        strings = string_list(value)
        if strings is None:
            return False
        exists = text in strings
    else:
        exists = text == value
    return exists is not operator.endswith("NotIn")


def list_membership(operator: str, keys: list[str], value: Json) -> bool:
    if type(value) is list:
        values = [sprint(item) for item in value]
    elif type(value) in {int, float, bool}:
        if operator.startswith("All"):
            return False
        values = [sprint(value)]
    elif type(value) is not str:
        return False
    elif len(keys) == 1 and keys[0] == value:
        return not operator.endswith("NotIn")
    elif _RANGE.fullmatch(value):
        outside = value.replace("-", "!-", 1)
        return {
            "AnyIn": any(match_leaf(k, value) for k in keys),
            "AllIn": all(match_leaf(k, value) for k in keys),
            "AnyNotIn": any(match_leaf(k, outside) for k in keys),
            "AllNotIn": not any(match_leaf(k, value) for k in keys),
        }[operator]
    elif is_json(value):
        strings = string_list(value)
        if strings is None:
            return False
        values = strings
    else:
        values = [value]
    found = [any(both_ways(k, v) for v in values) for k in keys]
    return {
        "AnyIn": any(found),
        "AllIn": all(found),
        "AnyNotIn": not all(found),
        "AllNotIn": not any(found),
    }[operator]


def old_membership(operator: str, key: Json, value: Json) -> bool:
    negated = operator == "NotIn"
    if type(key) is list:
        if type(value) is list:
            if not all(type(item) is str for item in value):
                return False
            return all(k in value for k in key) is not negated
        if type(value) is not str:
            return False
        if key == [value]:
            return True
        strings = string_list(value) if is_json(value) else None
        return strings is not None and all(k in strings for k in key) is not negated
    text = scalar(key)
    if text is None:
        return False
    if type(value) is list:
        return any(both_ways(sprint(v), text) for v in value) is not negated
    if type(value) is not str:
        return False
    if wildcard(value, text):
        return not negated
    strings = string_list(value) if is_json(value) else None
    return strings is not None and (text in strings) is not negated


def ordered(operator: str, left: Json, right: Json) -> bool:
    return bool(
        {
            "GreaterThan": left > right,
            "GreaterThanOrEquals": left >= right,
            "LessThan": left < right,
            "LessThanOrEquals": left <= right,
        }[operator]
    )


def numeric(operator: str, key: Json, value: Json) -> bool:
    if type(key) is list:
        return any(numeric(operator, k, value) for k in key if type(k) is not list)
    exact = milli_pair(key, value)
    if exact:
        return ordered(operator, *exact)
    if type(key) not in {int, float, str}:
        return False
    pair = duration_pair(key, value)
    if pair:
        return ordered(operator, *pair)
    if type(key) is str:
        if type(value) is str:
            left, right = parse_quantity(key), parse_quantity(value)
            if left is not None and right is not None:
                return ordered(operator, left, right)
        number = number_of(key)
        if number is None:
            version = parse_version(key)
            if version is None or type(value) is not str:
                return False
            other = parse_version(value)
            return other is not None and ordered(operator, version, other)
        return numeric(operator, number, value)
    if type(value) is str:
        number = number_of(value)
        return number is not None and ordered(operator, float(key), number)
    return is_number(value) and ordered(operator, float(key), float(value))


def durations(operator: str, key: Json, value: Json) -> bool:
    if type(key) is list:
        return any(durations(operator, k, value) for k in key if type(k) is not list)
    sides = []
    for side in (key, value):
        if is_number(side):
            sides.append(int(side) * _SECOND)
        elif type(side) is str and (parsed := parse_duration(side)) is not None:
            sides.append(parsed)
        else:
            return False
    return ordered(operator, sides[0], sides[1])
