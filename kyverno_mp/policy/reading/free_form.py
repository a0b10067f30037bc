"""Find values that a free-form schema accepts and Go's types do not.

Room: policy. Takes: a raw ClusterPolicy or Policy. Gives: Problems. Next: the CLI,
where such a document invalidates its whole path. May touch: nothing outside its
arguments.
Source: docs/behaviour/cli 4; api/kyverno/v1 (conditions: a list, or any and all).
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.policy.problems import Problem, rule_name
from kyverno_mp.values.jsonvalue import Json

GO_MISFIT: Final = "policy.go_type"

_INNER: Final = ("validate", "mutate", "verifyImages", "foreach", "targets")
"""Fields of a rule, or of its parts, that may contain conditions."""
_TEXTS: Final = ("operator", "message")


def go_misfits(raw: dict[str, Json]) -> Iterator[Problem]:
    """Yield problems for conditions that are neither a list nor any and all."""
    spec = raw.get("spec")
    rules = spec.get("rules") if type(spec) is dict else None
    for index, rule in enumerate(rules if type(rules) is list else ()):
        path = f"spec.rules[{index}]"
        for place in _misfits(rule, path):
            text = "must be a list of conditions, or any and all"
            yield Problem(GO_MISFIT, place, rule_name(raw, path), text)


def _misfits(part: Json, path: str) -> Iterator[str]:
    if type(part) is list:
        for index, item in enumerate(part):
            yield from _misfits(item, f"{path}[{index}]")
    if type(part) is not dict:
        return
    deny = part.get("deny")
    given = {"preconditions": part.get("preconditions")}
    if type(deny) is dict:
        given["deny.conditions"] = deny.get("conditions")
    yield from (f"{path}.{name}" for name, one in given.items() if not _fits(one))
    for name in _INNER:
        yield from _misfits(part.get(name), f"{path}.{name}")


def _fits(conditions: Json) -> bool:
    if type(conditions) is dict:
        return all(_is_list(conditions.get(name)) for name in ("any", "all"))
    return _is_list(conditions)


def _is_list(conditions: Json) -> bool:
    if conditions is None:
        return True
    return type(conditions) is list and all(map(_is_condition, conditions))


def _is_condition(value: Json) -> bool:
    if value is None:
        return True
    texts = (value.get(name) for name in _TEXTS) if type(value) is dict else (1,)
    return all(one is None or type(one) is str for one in texts)
