"""Evaluate a pattern naively: the second opinion for expr/pattern.

Room: tests. Takes: a raw JSON pattern and a resource. Gives: (status, path, text).
Slow and plain, written from docs/behaviour/engine 5, on purpose without any product
code.
May touch: nothing outside its arguments.
"""

import fnmatch
import math
import re
from fractions import Fraction
from typing import Any, NamedTuple

ANCHOR = re.compile(r"([+<=X^])?\((.+)\)")
END = r"([-|\+]?[0-9]+(?:\.[0-9]+)?[A-Za-z]*)"
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9,
         "h": 3600 * 10**9}  # fmt: skip
SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    "": Fraction(1), "k": Fraction(10**3), "M": Fraction(10**6),
    "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
    "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip


class Wrong(NamedTuple):
    """An evaluation error; ``kind``: plain (skip), wrapped (skip), negation, other."""

    kind: str
    path: str
    text: str

    @property
    def skips(self) -> bool:
        return self.kind in ("plain", "wrapped")


def evaluate(pattern: Any, resource: Any) -> tuple[str, str, str]:
    """Return status, path and text of one pattern (5.7)."""
    seen: dict[str, bool] = {}
    wrong = element(pattern, resource, "/", seen)
    if wrong is None:
        return "pass", "", ""
    if wrong.skips:
        return "skip", "", wrong.text
    if wrong.kind == "other" and False in seen.values():
        return "error", "", wrong.text
    return ("fail" if wrong.path else "error"), wrong.path, wrong.text


def anchor(key: str) -> tuple[str, str] | None:
    found = ANCHOR.fullmatch(key.strip())
    if found is None or found[1] == "+":
        return None
    return found[1] or "", found[2]


def kind_of(key: str) -> str:
    found = anchor(key)
    return "plain" if found is None else found[0]


def name_of(key: str) -> str:
    found = anchor(key)
    return key if found is None else found[1]


def element(pattern: Any, value: Any, path: str, seen: dict[str, bool]) -> Wrong | None:
    if isinstance(pattern, dict):
        if not isinstance(value, dict):
            text = f"pattern and resource have different structures. Path: {path}. "
            text += f"Expected {go_type(pattern)}, found {go_type(value)}"
            return Wrong("other", path, text)
        return mapping(pattern, value, path, seen)
    if isinstance(pattern, list):
        if not isinstance(value, list):
            text = f"validation rule failed at path {path}, resource does not satisfy "
            return Wrong("other", path, text + "the expected overlay pattern")
        return listing(pattern, value, path, seen)
    values = value if isinstance(value, list) else [value]
    if all(satisfies(item, pattern) for item in values):
        return None
    text = f"resource value '{show(value)}' does not match '{show(pattern)}' at path "
    return Wrong("other", path, text + path)


def mapping(
    pattern: dict[str, Any], resource: dict[str, Any], path: str, seen: dict[str, bool]
) -> Wrong | None:
    for key in pattern:
        if kind_of(key) in ("", "^"):
            seen[key] = seen.get(key, False) or name_of(key) in resource
    pattern = expanded(pattern, resource)
    skips: list[Wrong] = []
    applied = 0
    for key in sorted(k for k in pattern if kind_of(k) in ("", "^", "=", "X")):
        wrong = first_phase(key, pattern[key], resource, path, seen)
        if wrong is None:
            applied += 1
        elif wrong.skips:
            skips.append(wrong)
        elif not any(skip.kind == "plain" for skip in skips):
            return wrong
    if skips and (applied == 0 or any(skip.kind == "plain" for skip in skips)):
        return Wrong("wrapped", path, "; ".join(skip.text for skip in skips))
    order: list[str] = []
    for key in sorted(k for k in pattern if kind_of(k) in ("plain", "<")):
        if kind_of(key) == "<" or has_anchors(pattern[key]):
            order.insert(0, key)
        else:
            order.append(key)
    for key in order:
        wrong = second_phase(key, pattern[key], resource, path, seen)
        if wrong is not None:
            return wrong
    return None


def has_anchors(pattern: Any) -> bool:
    if isinstance(pattern, dict):
        return any(kind_of(k) != "plain" or has_anchors(v) for k, v in pattern.items())
    return isinstance(pattern, list) and any(has_anchors(item) for item in pattern)


def first_phase(
    key: str, pattern: Any, resource: dict[str, Any], path: str, seen: dict[str, bool]
) -> Wrong | None:
    kind, name = kind_of(key), name_of(key)
    here = path + name + "/"
    if name not in resource:
        if kind != "":
            return None
        text = "conditional anchor key doesn't exist in the resource"
        return Wrong("plain", here, "conditional anchor mismatch: " + text)
    value = resource[name]
    if kind == "X":
        text = f"negation anchor matched in resource: {here} is not allowed"
        return Wrong("negation", here, text)
    if kind == "^":
        return existence(pattern, value, here, seen)
    wrong = element(pattern, value, here, seen)
    if wrong is None or kind == "=":
        return wrong
    return Wrong("plain", wrong.path, "conditional anchor mismatch: " + wrong.text)


def existence(
    pattern: Any, value: Any, path: str, seen: dict[str, bool]
) -> Wrong | None:
    if not isinstance(value, list):
        text = f"invalid resource type {go_type(value)}: Existence ^ () anchor can be "
        return Wrong("other", path, text + "used only on list/array type resource")
    if not isinstance(pattern, list):
        text = f"invalid pattern type {go_type(pattern)}: Pattern has to be of list "
        return Wrong("other", path, text + "to compare against resource")
    for wanted in pattern:
        if not isinstance(wanted, dict):
            text = f"invalid pattern type {go_type(pattern)}: Pattern has to be of "
            return Wrong(
                "other", path, text + "type map to compare against items in resource"
            )
        for index, item in enumerate(value):
            if element(wanted, item, f"{path}{index}/", seen) is None:
                break
        else:
            text = f"existence anchor validation failed at path {path}"
            return Wrong("other", path, text)
    return None


def second_phase(
    key: str, pattern: Any, resource: dict[str, Any], path: str, seen: dict[str, bool]
) -> Wrong | None:
    name = name_of(key)
    here = path + name + "/"
    if kind_of(key) == "<":
        if name not in resource:
            return None
        wrong = element(pattern, resource[name], here, seen)
        if wrong is None:
            return None
        return Wrong("plain", wrong.path, "global anchor mismatch: " + wrong.text)
    if pattern == "*":
        if resource.get(key) is None:
            return Wrong("other", path, f"{path}/{key} not found")
        return None
    return element(pattern, resource.get(key), here, seen)


def listing(
    pattern: list[Any], values: list[Any], path: str, seen: dict[str, bool]
) -> Wrong | None:
    if not pattern:
        return Wrong("other", path, "pattern Array empty")
    if not isinstance(pattern[0], dict | list):
        return element(pattern[0], values, path, seen)
    if isinstance(pattern[0], dict):
        pattern = [pattern[0]] * len(values)
    if len(values) < len(pattern):
        text = "validate Array failed, array length mismatch, resource Array len is "
        text += f"{len(values)} and pattern Array len is {len(pattern)}"
        return Wrong("other", "", text)
    skips: list[str] = []
    for index, wanted in enumerate(pattern):
        wrong = element(wanted, values[index], f"{path}{index}/", seen)
        if wrong is not None and not wrong.skips:
            return wrong
        if wrong is not None:
            skips.append(wrong.text)
    if skips and len(skips) == len(pattern):
        return Wrong("wrapped", path, "; ".join(skips))
    return None


def expanded(pattern: dict[str, Any], resource: dict[str, Any]) -> dict[str, Any]:
    """Replace wildcard keys in metadata's labels and annotations (5.6)."""
    metadata = resource.get("metadata")
    if not isinstance(metadata, dict):
        return pattern
    result = dict(pattern)
    for key, value in pattern.items():
        if name_of(key) == "metadata" and isinstance(value, dict):
            result[key] = dict(value)
            for inner, block in value.items():
                labels = metadata.get(name_of(inner))
                named = name_of(inner) in ("labels", "annotations")
                if named and isinstance(block, dict) and isinstance(labels, dict):
                    result[key][inner] = expanded_block(block, labels)
    return result


def expanded_block(block: dict[str, Any], labels: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key in sorted(block):
        wanted = block[key]
        if not isinstance(wanted, str):
            continue
        good = kind_of(key) in ("", "<")
        if "*" not in key and "?" not in key:
            if not kept(result, key, labels.get(name_of(key)), good=good):
                result[key] = wanted
            continue
        found = ANCHOR.fullmatch(key.strip())
        wildcard = found[2] if found else key
        options = [
            k
            for k in sorted(labels)
            if isinstance(labels[k], str) and wild(wildcard, k)
        ]
        # Kyverno takes any of them; ours prefers the one that finds a violation.
        best = [k for k in options if satisfies(labels[k], wanted) == good]
        chosen = (best or options or [wildcard])[0]
        chosen_key = f"{found[1] or ''}({chosen})" if found else chosen
        if not kept(result, chosen_key, labels.get(chosen), good=good):
            result[chosen_key] = wanted
    return result


def kept(result: dict[str, Any], key: str, label: Any, *, good: bool) -> bool:
    """Return whether an earlier entry for the key stays: it finds a violation."""
    return key in result and satisfies(label, result[key]) == good


def wild(pattern: str, text: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


def satisfies(value: Any, pattern: Any) -> bool:
    if isinstance(value, dict | list):
        return False
    if isinstance(pattern, str):
        return value == pattern or any(
            all(term(value, part.strip(" ")) for part in option.strip(" ").split("&"))
            for option in pattern.split("|")
        )
    if pattern is None:
        return value in (None, 0, 0.0, "", False)
    if isinstance(pattern, bool):
        return isinstance(value, bool) and value == pattern
    if isinstance(value, str):
        return text_number(value, pattern)
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (value == pattern)
    )


def text_number(value: str, pattern: float) -> bool:
    if isinstance(pattern, int):
        return bool(re.fullmatch(r"[+-]?[0-9]+", value)) and int(value) == pattern
    number = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    return bool(re.fullmatch(number, value)) and float(value) == pattern


def term(value: Any, text: str) -> bool:
    if len(text) > 1:
        for operator in (">=", "<=", ">", "<", "!"):
            if text.startswith(operator):
                return compare(value, operator, text[len(operator) :].strip())
        if found := re.fullmatch(f"{END}!-{END}", text):
            return compare(value, "<", found[1]) or compare(value, ">", found[2])
        if found := re.fullmatch(f"{END}-{END}", text):
            return compare(value, ">=", found[1]) and compare(value, "<=", found[2])
    return compare(value, "", text.strip())


def compare(value: Any, operator: str, pattern: str) -> bool:
    for read in (duration, quantity):
        wanted, actual = read(pattern), read(as_number_text(value))
        if wanted is not None and actual is not None:
            return {
                "": actual == wanted, "!": actual != wanted, ">": actual > wanted,
                "<": actual < wanted, ">=": actual >= wanted, "<=": actual <= wanted,
            }[operator]  # fmt: skip
    text = as_text(value)
    if text is None or operator not in ("", "!"):
        return False
    return wild(pattern, text) == (operator == "")


def as_number_text(value: Any) -> str | None:
    if value is None:
        return "0"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return None
    return f"{value:f}" if isinstance(value, float) else str(value)


def as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    digits, exponent = scientific(value)
    return f"{digits}E{exponent:+03d}"


def duration(text: str | None) -> int | None:
    if text is None:
        return None
    sign = -1 if text.startswith("-") else 1
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return 0
    one = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|ms|s|m|h)"
    if not re.fullmatch(f"({one})+", body):
        return None
    parts = re.findall(one, body)
    return sign * sum(
        int(Fraction(number.rstrip(".")) * UNITS[unit]) for number, unit in parts
    )


def quantity(text: str | None) -> Fraction | None:
    pattern = r"([+-]?)([0-9]*)(?:\.([0-9]*))?([A-Za-z]*|[eE][+-]?[0-9]+)"
    found = re.fullmatch(pattern, text or "~")
    if found is None:
        return None
    sign, whole, fraction, suffix = found.groups()
    if re.fullmatch(r"[eE][+-]?[0-9]+", suffix):
        scale = Fraction(10) ** int(suffix[1:])
    elif suffix in SUFFIXES:
        scale = SUFFIXES[suffix]
    else:
        return None
    number = Fraction(int((whole or "0") + (fraction or "")), 10 ** len(fraction or ""))
    nanos = math.ceil(number * scale * 10**9)
    return Fraction(nanos, 10**9) * (-1 if sign == "-" else 1)


def scientific(value: float) -> tuple[str, int]:
    digits, _, exponent = f"{value:.17e}".partition("e")
    for places in range(17):
        digits, _, exponent = f"{value:.{places}e}".partition("e")
        if float(f"{digits}e{exponent}") == value:
            break
    return digits, int(exponent)


def show(value: Any) -> str:
    """Format like Go's %v."""
    if value is None:
        return "<nil>"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{k}:{show(value[k])}" for k in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(show(item) for item in value) + "]"
    if isinstance(value, float):
        digits, exponent = scientific(value)
        if -4 <= exponent < 6:
            return repr(value).removesuffix(".0")
        return f"{digits}e{exponent:+03d}"
    return as_text(value) or ""


def go_type(value: Any) -> str:
    if isinstance(value, dict | list):
        return (
            "map[string]interface {}" if isinstance(value, dict) else "[]interface {}"
        )
    names = {str: "string", bool: "bool", int: "int64", float: "float64"}
    return names.get(type(value), "<nil>")
