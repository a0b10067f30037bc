"""A rule links those of its exceptions that a request may match.

A failure means: an exception is overlooked, or a tenant with many exceptions delays the
first review after each change for everybody.
"""

import random
from typing import Any

import pytest

from kyverno_mp.ir.match import FilterIR, KindIR, MatchIR
from kyverno_mp.program import rule_gate
from kyverno_mp.program.matching.exceptions import ExceptionIndex
from kyverno_mp.program.matching.match import link_match
from kyverno_mp.program.request import Request
from tests.unit.leader.test_exception_steps import CLUSTER_POLICY, exception, new_store
from tests.unit.leader.test_linked_memory import asked

NAMES = ("", "a", "b", "a*", "?", "*")
KINDS = (KindIR("*", "*", "Pod", ""), KindIR("*", "*", "Namespace", ""))


def some(pick: random.Random, most: int = 2) -> tuple[str, ...]:
    return tuple(pick.choice(NAMES[1:]) for _ in range(pick.randrange(most + 1)))


def block(pick: random.Random) -> MatchIR:
    filters = tuple(
        FilterIR(
            kinds=tuple(pick.sample(KINDS, pick.randrange(3))),
            name=pick.choice(NAMES) if pick.random() < 0.3 else "",
            names=some(pick),
            namespaces=some(pick),
        )
        for _ in range(pick.randrange(4))
    )
    return MatchIR(pick.choice(("any", "all")), filters)


def requests() -> list[Request]:
    found = []
    for kind in ("Pod", "Namespace"):
        for namespace in ("", "a", "b", "other"):
            for name in ("a", "ab", "b", "x", ""):
                metadata = {"name": name} if name else {"generateName": "a"}
                resource: dict[str, Any] = {"kind": kind, "metadata": metadata}
                common: dict[str, Any] = {"kind": kind, "namespace": namespace}
                found.append(Request(object=resource, **common))
                found.append(Request(old_object=resource, **common))
    return found


def test_every_matching_exception_is_found() -> None:
    pick = random.Random(9)
    blocks = [block(pick) for _ in range(400)]
    index = ExceptionIndex(blocks)
    matchers = [link_match(one, None, for_exception=True).matches for one in blocks]
    left_out = 0
    for request in requests():
        positions = index.positions(request)
        assert list(positions) == sorted(set(positions))
        matching = {at for at, matches in enumerate(matchers) if matches(request)}
        assert matching <= set(positions)
        left_out += len(blocks) - len(positions)
    assert left_out


def test_review_links_only_exceptions_that_can_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linked = []

    def counted(match: MatchIR, *others: Any, **options: Any) -> Any:
        if options.get("for_exception"):
            linked.append(match.filters[0].names)
        return link_match(match, *others, **options)

    monkeypatch.setattr(rule_gate, "link_match", counted)
    documents = []
    for number in range(200):
        one = exception(f"x{number:03}", 1)
        resources = one["spec"]["match"]["any"][0]["resources"]
        resources |= {"namespaces": ["tenant"], "names": [f"p{number}"]}
        documents.append(one)
    for_one = exception("y", 1)
    resources = for_one["spec"]["match"]["any"][0]["resources"]
    resources |= {"namespaces": ["default"], "names": ["of-others"]}
    found = new_store(CLUSTER_POLICY, *documents, for_one)
    asked(found, monkeypatch)
    assert linked == [("of-others",)]
