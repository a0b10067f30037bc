"""Candidates include every matching rule, and rules that cannot match cost nothing."""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.compiler.rules.match import build_exclude, build_match
from kyverno_mp.ir.index import PolicyHeadIR, RuleHeadIR
from kyverno_mp.ir.match import FilterIR, MatchIR
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR, RuleIR, ValidateIR
from kyverno_mp.program.matching.candidates import RuleSource, SegmentSource
from kyverno_mp.program.matching.match import link_match
from kyverno_mp.program.request import Request
from kyverno_mp.snapshot.policies import POLICIES, PoliciesWriter, PolicySegment
from kyverno_mp.snapshot.read import Segment
from tests.blocks import exclude_of, match_of

SALT = bytes(range(16))


def link(policy: PolicyIR, rule: RuleIR) -> tuple[str, str]:
    return policy.key, rule.name


def a_policy(name: str, *matches: Any, namespace: str = "") -> CompiledPolicy:
    rules = tuple(
        RuleIR(
            name=f"rule-{number}",
            rule_type="validate",
            match=build_match(match_of(match.get("match", match))),
            exclude=build_exclude(exclude_of(match.get("exclude"))),
            validate=ValidateIR(raw_message="no"),
        )
        for number, match in enumerate(matches)
    )
    kind = "Policy" if namespace else "ClusterPolicy"
    return CompiledPolicy(PolicyIR(kind=kind, name=name, namespace=namespace), rules)


def a_segment(policies: list[CompiledPolicy]) -> PolicySegment:
    encoded = [encode_policy(policy) for policy in policies]
    content = PoliciesWriter().encode(encoded, generation=1, salt=SALT)
    return PolicySegment(Segment.from_bytes(content, POLICIES))


def matching(
    source: RuleSource[tuple[str, str]], request: Request
) -> list[tuple[str, str]]:
    return [
        ref.linked
        for candidate in source.candidates(request)
        for ref in candidate.rules
        if ref.matches(request)
    ]


def found(
    source: RuleSource[tuple[str, str]], request: Request
) -> list[tuple[str, str]]:
    return [
        (candidate.policy.key, ref.linked[1])
        for candidate in source.candidates(request)
        for ref in candidate.rules
    ]


def pod_request(**facts: Any) -> Request:
    namespace, name = facts.get("namespace", "default"), facts.get("name", "web")
    metadata = {"name": name, "namespace": namespace}
    given: dict[str, Any] = {
        "kind": "Pod",
        "namespace": namespace,
        "name": name,
        "object": {"kind": facts.get("kind", "Pod"), "metadata": metadata},
        "username": "alice",
        "groups": ("dev",),
        "has_user_info": True,
    }
    return Request(**{**given, **facts})


KINDS = ["Pod", "v1/Pod", "*", "*/*", "P*", "Pod/exec", "Namespace", "Job"]
LONG = "long-" * 8
TEXTS = [
    f"{LONG}*",
    "*eb",
    "?",
    "*",
    "a",
    "b",
    "web",
    "a*",
    "?",
    "we*",
    "w?b",
    "system:*",
    "web*",
]
NAMES = ["a", "b", "web", f"{LONG}x"]
USER = "system:serviceaccount:a:a"


def draw_some(chance: Random, values: list[Any]) -> list[Any]:
    return chance.sample(values, chance.choice((1, 1, 2)))


def draw_filter(chance: Random) -> dict[str, Any]:
    """Draw mostly one or two criteria, because more would hardly ever match."""
    kinds = ("User", "User", "Group", "ServiceAccount", "Other")
    draw: dict[str, Callable[[], Any]] = {
        "kinds": lambda: draw_some(chance, KINDS),
        "name": lambda: chance.choice(TEXTS),
        "names": lambda: draw_some(chance, TEXTS),
        "namespaces": lambda: draw_some(chance, TEXTS),
        "operations": lambda: draw_some(chance, ["CREATE", "DELETE"]),
        "selector": lambda: {"matchLabels": {"l": chance.choice(TEXTS)}},
        "annotations": lambda: {"l": chance.choice(TEXTS)},
        "namespaceSelector": lambda: {"matchLabels": {"l": chance.choice(TEXTS)}},
        "roles": lambda: draw_some(chance, NAMES),
        "clusterRoles": lambda: draw_some(chance, NAMES),
        "subjects": lambda: [
            {
                "kind": chance.choice(kinds),
                "name": chance.choice([*TEXTS, USER]),
                "namespace": "a",
            }
            for _ in range(chance.choice((1, 2, 2)))
        ],
    }
    chosen = chance.sample(list(draw), chance.choice((0, 1, 1, 1, 2, 2, 3)))
    entry = {key: draw[key]() for key in chosen if key in USER_CRITERIA}
    entry["resources"] = {
        key: draw[key]() for key in chosen if key not in USER_CRITERIA
    }
    return entry


USER_CRITERIA = ("subjects", "roles", "clusterRoles")


def draw_block(chance: Random) -> dict[str, Any]:
    mode = chance.choice(("any", "all", "legacy"))
    if mode == "legacy":
        return draw_filter(chance)
    return {mode: [draw_filter(chance) for _ in range(chance.choice((1, 2, 2)))]}


def draw_rule(chance: Random) -> dict[str, Any]:
    exclude = draw_block(chance) if chance.random() < 0.5 else None
    return {"match": draw_block(chance), "exclude": exclude}


def draw_policy(chance: Random, number: int) -> CompiledPolicy:
    rules = [draw_rule(chance) for _ in range(2)]
    namespace = chance.choice(("", "", "", "a"))
    return a_policy(f"p{number}", *rules, namespace=namespace)


def draw_request(chance: Random) -> Request:
    kind = chance.choice(("Pod", "Pod", "Namespace", "Job"))
    namespace = chance.choice(("a", "b", ""))
    pair = {"l": chance.choice(NAMES)}
    metadata = {
        chance.choice(("name", "generateName")): chance.choice(NAMES),
        "namespace": namespace,
        "labels": pair,
        "annotations": pair,
    }
    resource = {"kind": kind, "metadata": metadata}
    delete, known = chance.random() < 0.3, chance.random() < 0.7
    return Request(
        operation="DELETE" if delete else "CREATE",
        kind=kind,
        group="batch" if kind == "Job" else "",
        subresource=chance.choice(("", "", "", "exec", "ephemeralcontainers")),
        namespace=chance.choice(("", namespace)),
        namespace_labels=pair,
        object={} if delete else resource,
        old_object=resource if delete else {},
        username=chance.choice((*NAMES, USER)) if known else "",
        groups=tuple(draw_some(chance, NAMES)) if known else (),
        roles=tuple(draw_some(chance, NAMES)) if known else (),
        cluster_roles=tuple(draw_some(chance, NAMES)) if known else (),
        has_user_info=known,
    )


@pytest.mark.parametrize("seed", range(12))
def test_every_matching_rule_is_a_candidate(seed: int) -> None:
    """A missed rule would admit an object that a policy forbids."""
    chance = Random(seed)
    compiled = [draw_policy(chance, number) for number in range(60)]
    plain = [
        (
            link(policy.policy, rule),
            link_match(
                rule.match, rule.exclude, policy_namespace=policy.policy.namespace
            ),
        )
        for policy in compiled
        for rule in policy.rules
    ]
    from_segment = SegmentSource(a_segment(compiled), link)
    for _ in range(60):
        request = draw_request(chance)
        expected = [pair for pair, matcher in plain if matcher.matches(request)]
        assert matching(from_segment, request) == expected
        for _, matcher in plain:
            assert matcher.matches(request) is (matcher.explain(request) == "")


OTHERS: dict[str, Any] = {
    "namespaces": lambda i: {"resources": {"kinds": ["Pod"], "namespaces": [f"n{i}"]}},
    "names": lambda i: {"resources": {"kinds": ["Pod"], "names": [f"n{i}"]}},
    "operations": lambda _: {"resources": {"kinds": ["Pod"], "operations": ["DELETE"]}},
    "users": lambda i: {
        "resources": {"kinds": ["Pod"]},
        "subjects": [{"kind": "User", "name": f"u{i}"}],
    },
    "service accounts": lambda i: {
        "resources": {"kinds": ["Pod"]},
        "subjects": [{"kind": "ServiceAccount", "name": f"u{i}", "namespace": "n"}],
    },
    "groups": lambda i: {
        "resources": {"kinds": ["Pod"]},
        "subjects": [{"kind": "Group", "name": f"g{i}"}],
    },
    "roles": lambda i: {"resources": {"kinds": ["Pod"]}, "roles": [f"n:r{i}"]},
    "namespace patterns": lambda i: {
        "resources": {"kinds": ["Pod"], "namespaces": [f"n{i}-*"]}
    },
    "name patterns": lambda i: {"resources": {"kinds": ["Pod"], "name": f"n{i}-*"}},
    "user patterns": lambda i: {
        "resources": {"kinds": ["Pod"]},
        "subjects": [{"kind": "User", "name": f"u{i}-*"}],
    },
    "kinds": lambda i: {"resources": {"kinds": [f"Kind{i}"]}},
    "namespaces by all": lambda i: {
        "all": [
            {"resources": {"kinds": ["Pod"]}},
            {"resources": {"namespaces": [f"n{i}"]}},
        ]
    },
}


@pytest.mark.parametrize("what", OTHERS)
def test_rules_for_other_requests_are_not_read(what: str) -> None:
    """Latency must not grow with policies that do not match (design promise 2)."""
    mine = [a_policy(f"mine{i}", {"resources": {"kinds": ["Pod"]}}) for i in range(17)]
    others = [a_policy(f"other{i}", OTHERS[what](i)) for i in range(500)]
    alone, crowded = a_segment(mine), a_segment(mine + others)
    request = pod_request()
    for segment in (alone, crowded):
        assert len(found(SegmentSource(segment, link), request)) == 17
    assert alone.decoded_count == crowded.decoded_count


def test_policies_of_other_namespaces_are_not_read() -> None:
    """A Policy counts only for requests in its namespace."""
    others = [
        a_policy("same", {"resources": {"kinds": ["Pod"]}}, namespace=f"n{i}")
        for i in range(100)
    ]
    source = SegmentSource(a_segment(others), link)
    assert found(source, pod_request(namespace="n7")) == [("n7/same", "rule-0")]
    assert found(source, pod_request(namespace="other")) == []


@pytest.mark.parametrize(
    "exclude",
    [
        {"any": [{"resources": {"namespaces": ["default"]}}]},
        {"all": [{"resources": {"kinds": ["Pod"], "names": ["web"]}}]},
        {"any": [{"subjects": [{"kind": "User", "name": "alice"}]}]},
        {"any": [{"subjects": [{"kind": "Group", "name": "dev"}]}]},
        {"any": [{"resources": {"kinds": ["Pod"]}}]},
        {"resources": {"operations": ["CREATE"]}},
    ],
)
def test_exact_excludes_are_part_of_the_index(exclude: Any) -> None:
    """Rules that certainly exclude a request are not read."""
    rule = {"match": {"resources": {"kinds": ["*"]}}, "exclude": exclude}
    source = SegmentSource(a_segment([a_policy("p", rule)]), link)
    assert found(source, pod_request()) == []
    other = pod_request(
        operation="DELETE",
        kind="Job",
        namespace="n",
        name="n",
        username="bob",
        groups=("ops",),
    )
    assert found(source, other) == [("p", "rule-0")]


def test_candidates_are_in_policy_order_and_shared() -> None:
    """Rules run in policy order; a merged list is reused."""
    policies = [
        a_policy("c", {"resources": {"kinds": ["Pod"], "namespaces": ["default"]}}),
        a_policy(
            "a", {"resources": {"kinds": ["*"]}}, {"resources": {"names": ["web"]}}
        ),
        a_policy("b", {"resources": {"kinds": ["Pod"], "operations": ["CREATE"]}}),
    ]
    source = SegmentSource(a_segment(policies), link)
    expected = [("c", "rule-0"), ("a", "rule-0"), ("a", "rule-1"), ("b", "rule-0")]
    assert expected == found(source, pod_request())
    first = source.candidates(pod_request())
    assert first is source.candidates(pod_request())


def test_policy_texts_cannot_collide_with_keys() -> None:
    """One policy must not be able to hide another's rules."""
    # A document cannot have such an operation; the index must not rely on that.
    odd = MatchIR("all", (FilterIR(operations=("CREATE,x",), names=("y",)),))
    rule = RuleIR("rule-0", "validate", odd, validate=ValidateIR(raw_message="no"))
    policies = [
        CompiledPolicy(PolicyIR("ClusterPolicy", "p"), (rule,)),
        a_policy("q", {"resources": {"operations": ["CREATE"], "names": ["x,y"]}}),
    ]
    for order in (policies, policies[::-1]):
        source = SegmentSource(a_segment(order), link)
        assert matching(source, pod_request(name="x,y")) == [("q", "rule-0")]


def test_frequent_kinds_are_linked_in_advance() -> None:
    """After a new generation, no request waits for the rules of known kinds."""
    policies = [a_policy("p", {"resources": {"kinds": ["Pod"]}})]
    before = SegmentSource(a_segment(policies), link)
    before.candidates(pod_request())
    segment = a_segment(policies)
    after = SegmentSource(segment, link)
    for step in after.ahead(before):
        step.link()
    decoded = segment.decoded_count
    (candidate,) = after.candidates(pod_request())
    assert candidate.policy.name == "p"
    assert all(ref.is_linked for ref in candidate.rules)
    assert decoded == segment.decoded_count


def test_heads_are_the_leading_fields() -> None:
    """The head is decoded from the same bytes, so moved fields would be misread."""
    for head, whole in ((RuleHeadIR, RuleIR), (PolicyHeadIR, PolicyIR)):
        names = [field.name for field in msgspec.structs.fields(head)]
        assert names == [f.name for f in msgspec.structs.fields(whole)][: len(names)]
