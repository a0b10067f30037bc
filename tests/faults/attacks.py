"""Policies and objects made to block a worker or to fill its memory.

Data of tests/faults/test_neighbours.py and perf/neighbours.py. Unless stated otherwise,
they are policies of one namespace, which need no administrator.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.service import pod

NOTE = "request.object.metadata.annotations.a"
XS = "request.object.spec.xs"
YS = "request.object.spec.ys"
Rule = dict[str, Any]


@dataclass(frozen=True)
class Attack:
    """A policy, and an object that makes its evaluation expensive.

    ``path``: the path to which the API server would send the review.
    """

    policy: str
    make: Callable[[], dict[str, Any]]
    path: str = "/validate/ignore"


def tenant(rules: list[Rule], **spec: Any) -> str:
    """Return a policy of the namespace ``default``."""
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    named = [
        {"name": f"r{number}", "match": match, **rule}
        for number, rule in enumerate(rules)
    ]
    metadata = {
        "name": "heavy",
        "namespace": "default",
        "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
    }
    return json.dumps(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "Policy",
            "metadata": metadata,
            "spec": {
                "validationFailureAction": "Enforce",
                "failurePolicy": "Ignore",
                "background": False,
                **spec,
                "rules": named,
            },
        }
    )


def deny_if(key: Any, value: Any = "x", operator: str = "Equals") -> Rule:
    """Return a rule that denies where a condition holds."""
    condition = {"key": key, "operator": operator, "value": value}
    return {"validate": {"message": "m", "deny": {"conditions": {"all": [condition]}}}}


def asks(expression: str) -> Rule:
    """Return a rule that evaluates a JMESPath expression."""
    return deny_if("{{ " + expression + " }}")


def cel(expression: str) -> Rule:
    """Return a rule that evaluates a CEL expression."""
    return {"validate": {"cel": {"expressions": [{"expression": expression}]}}}


def pattern(wanted: Any) -> Rule:
    """Return a rule with a pattern."""
    return {"validate": {"message": "m", "pattern": wanted}}


def merges(patch: Any) -> Rule:
    """Return a rule that changes the object by a strategic merge."""
    return {"mutate": {"patchStrategicMerge": patch}}


def patches(text: str) -> Rule:
    """Return a rule that changes the object by a JSON patch."""
    return {"mutate": {"patchesJson6902": text}}


def foreach(list_of: str, body: Rule) -> Rule:
    """Return a rule that validates each element."""
    return {"validate": {"message": "m", "foreach": [{"list": list_of, **body}]}}


def noted(text: str, **spec: Any) -> dict[str, Any]:
    """Return a Pod with an annotation and the given other fields of its spec."""
    made = pod(app="x")
    made["metadata"]["annotations"] = {"a": text}
    made["spec"].update(spec)
    return made


def labelled(count: int) -> dict[str, Any]:
    """Return a Pod of many labels and annotations."""
    made = noted("")
    made["metadata"]["labels"] |= {f"l{n}": "a" * 40 for n in range(count)}
    made["metadata"]["annotations"] |= {f"n{n}": "a" * 40 for n in range(count)}
    return made


def _names(count: int) -> str:
    return ",".join(f"n{number}" for number in range(count))


def _copies(count: int) -> str:
    steps = [
        {"op": "copy", "from": "/spec/xs", "path": f"/spec/y{number}"}
        for number in range(count)
    ]
    return json.dumps(steps)


def _chain(count: int) -> Rule:
    """Return ``validate.cel`` with variables that refer to each other."""
    texts = ["object.metadata.name", *(f"variables.v{n} + 'a'" for n in range(count))]
    return {
        "variables": [
            {"name": f"v{number}", "expression": text}
            for number, text in enumerate(texts)
        ],
        "expressions": [{"expression": f"variables.v{count} != ''"}],
    }


def _has_some(prefix: str, count: int) -> str:
    found = " || ".join(f"has(x.{prefix}b{number})" for number in range(count))
    return f"object.spec.xs.all(x, {found} || true)"


_CLASSES = r"\PL"
_LOOP = XS + "[].length(join('', [@, @, @]))"
_NESTED = f"{YS}[].length({XS}[].to_string(@))"

ATTACKS: dict[str, Attack] = {
    "one long expression": Attack(
        tenant([asks(XS + "[?contains(@, 'b')] | length(@)")]),
        lambda: noted("", xs=["a" * 50] * 60_000),
    ),
    "many rules, each inside its budget": Attack(
        tenant([asks(_LOOP)] * 300), lambda: noted("", xs=["a"] * 5_000)
    ),
    "an audit": Attack(
        tenant([asks(_LOOP)] * 300, validationFailureAction="Audit"),
        lambda: noted("", xs=["a"] * 5_000),
    ),
    "trim of long texts": Attack(
        tenant([asks(f"{XS}[].trim(@, {NOTE})")] * 20),
        lambda: noted("b" * 300_000, xs=["a" * 1000] * 2_000),
    ),
    "semver_compare": Attack(
        tenant([asks(f"{XS}[].semver_compare('1.2.3', {NOTE})")] * 20),
        lambda: noted(">1.0.0 || " * 3_000 + ">1.0.0", xs=["a"] * 3_000),
    ),
    "regexes": Attack(
        tenant([asks(f"{XS}[].regex_match('(a|b)*c(a|b)*', {NOTE})")] * 20),
        lambda: noted("ab" * 200_000, xs=["a"] * 3_000),
    ),
    "regexes of the object": Attack(
        tenant([asks(f"{XS}[].regex_match(@, 'aaa')")]),
        lambda: noted("", xs=[f"(a{n})*" for n in range(60_000)]),
    ),
    "regexes that take seconds to compile": Attack(
        tenant([asks(f"{XS}[].regex_match(@, 'aaa')")]),
        lambda: noted("", xs=[f"(?:{'a{500,1000}' * 128}){n}" for n in range(60)]),
    ),
    "regexes of Unicode classes": Attack(
        tenant([cel("object.spec.xs.exists(x, 'a'.matches(x))")]),
        lambda: noted("", xs=[f"(?i){_CLASSES * 2_500}{n}" for n in range(60)]),
    ),
    "a chain of variables": Attack(
        tenant([{"validate": {"cel": _chain(900)}}]), lambda: noted("")
    ),
    "many names in many empty maps": Attack(
        tenant([cel(_has_some(f"a{n}", 900)) for n in range(4)]),
        lambda: noted("", xs=[{}] * 15_000),
    ),
    "equal_fold, contains, split, sha256": Attack(
        tenant(
            [
                asks(f"{XS}[].equal_fold({NOTE}, {NOTE})"),
                asks(f"{XS}[].contains({NOTE}, 'zz')"),
                asks(f"{XS}[].length(split({NOTE}, 'a'))"),
                asks(f"{XS}[].sha256({NOTE})"),
            ]
        ),
        lambda: noted("aB" * 300_000, xs=["a"] * 5_000),
    ),
    "times and bad base64": Attack(
        tenant(
            [
                asks(f"{XS}[].time_parse('{'2006' * 200}', {NOTE})"),
                asks(f"{XS}[].base64_decode({NOTE})"),
            ]
        ),
        lambda: noted("2026" * 100_000 + "!", xs=["a"] * 5_000),
    ),
    "conditions with wildcards": Attack(
        tenant(
            [deny_if("{{ " + XS + " }}", "{{ " + YS + " }}", "AnyIn")],
        ),
        lambda: noted("", xs=["a*" + "b" * 20] * 3_000, ys=["a*" + "c" * 20] * 3_000),
    ),
    "nested foreach": Attack(
        tenant(
            [
                foreach(
                    XS,
                    {
                        "foreach": [
                            {
                                "list": YS,
                                "deny": {
                                    "conditions": {
                                        "all": [
                                            {
                                                "key": "{{ element }}",
                                                "operator": "Equals",
                                                "value": "never",
                                            }
                                        ]
                                    }
                                },
                            }
                        ]
                    },
                )
            ]
        ),
        lambda: noted("", xs=["a"] * 3_000, ys=["b"] * 3_000),
    ),
    "expressions within expressions": Attack(
        tenant([asks(_NESTED)] * 3), lambda: noted("", xs=["a"] * 5_000, ys=[1] * 5_000)
    ),
    "patterns over long lists": Attack(
        tenant([pattern({"spec": {"xs": [{"a": "?*b?*c?*"}]}})] * 100),
        lambda: noted("", xs=[{"a": "abbbbbbbbbc" * 10}] * 30_000),
    ),
    "anyPattern": Attack(
        tenant(
            [
                {
                    "validate": {
                        "message": "m",
                        "anyPattern": [{"spec": {"xs": [{"a": f"*{n}*b*"}]}}] * 50,
                    }
                }
                for n in range(20)
            ]
        ),
        lambda: noted("", xs=[{"a": "a" * 200}] * 5_000),
    ),
    "selectors and annotations with wildcards": Attack(
        tenant(
            [
                {
                    "match": {
                        "any": [
                            {
                                "resources": {
                                    "kinds": ["Pod"],
                                    "annotations": {f"*{n}*a*b": "*a*b*"},
                                    "selector": {"matchLabels": {f"*{n}*a*b": "*a*b"}},
                                }
                            }
                        ]
                    },
                    "validate": {"message": "m", "deny": {}},
                }
                for n in range(300)
            ]
        ),
        lambda: labelled(5_000),
    ),
    "a multi-select of many names": Attack(
        tenant([asks(f"{XS}[].[{_names(4_000)}] | length(to_string(@))")]),
        lambda: noted("", xs=[{"n1": "a"}] * 2_000),
    ),
    "long messages": Attack(
        tenant(
            [
                {"validate": {"message": "{{ " + NOTE + " }}" * 20, "deny": {}}}
                for _ in range(20)
            ]
        ),
        lambda: noted("m" * 700_000),
    ),
    "CEL over lists in lists": Attack(
        tenant(
            [
                cel(
                    "object.spec.xs.all(x, object.spec.ys.all(y,"
                    " object.spec.ys.exists(z, z == x + y + 'never') || true))"
                )
            ]
            * 5
        ),
        lambda: noted("", xs=["a"] * 300, ys=["b"] * 300),
    ),
    "CEL: equality of long lists, texts that grow": Attack(
        tenant(
            [
                cel("object.spec.xs.all(x, object.spec.ys == object.spec.zs)"),
                cel(
                    "object.spec.xs.map(x, x + object.metadata.name).join('').size()>0"
                ),
            ]
        ),
        lambda: noted("", xs=["a"] * 2_000, ys=["b"] * 20_000, zs=["b"] * 20_000),
    ),
    "copies of a JSON patch": Attack(
        tenant([patches(_copies(400))]),
        lambda: noted("", xs=["a"] * 20_000),
        "/mutate/ignore",
    ),
    "merges of long lists": Attack(
        tenant(
            [
                merges(
                    {"spec": {"containers": [{"(name)": "c*", "image": f"r.io/{n}:1"}]}}
                )
                for n in range(50)
            ]
        ),
        lambda: noted(
            "", containers=[{"name": f"c{n}", "image": "a"} for n in range(20_000)]
        ),
        "/mutate/ignore",
    ),
    "a foreach that patches": Attack(
        tenant(
            [
                {
                    "mutate": {
                        "foreach": [
                            {
                                "list": "request.object.spec.containers",
                                "patchesJson6902": json.dumps(
                                    [
                                        {
                                            "op": "add",
                                            "path": "/spec/containers/0/env/-",
                                            "value": {"name": "{{ element.name }}"},
                                        }
                                    ]
                                ),
                            }
                        ]
                    }
                }
            ]
        ),
        lambda: noted(
            "",
            containers=[
                {"name": f"c{n}", "image": "a", "env": [{"name": "e"}] * 5}
                for n in range(10_000)
            ],
        ),
        "/mutate/ignore",
    ),
    "podSecurity of many containers": Attack(
        tenant(
            [
                {
                    "validate": {
                        "podSecurity": {"level": "restricted", "version": "latest"}
                    }
                }
            ]
            * 50
        ),
        lambda: noted(
            "", containers=[{"name": f"c{n}", "image": "a"} for n in range(10_000)]
        ),
    ),
    "a policy of a thousand rules": Attack(
        tenant([pattern({"spec": {"xs": [{f"a{n}": "?*"}]}}) for n in range(1000)]),
        lambda: noted("", xs=[{"a": "b"}] * 10),
    ),
    "an object of ten megabytes": Attack(
        tenant([pattern({"spec": {"xs": "?*"}})]),
        lambda: noted("", xs=[{"a": {"b": "c"}}] * 300_000),
    ),
}
