"""Policies in CEL that share a webhook are asked exactly when one of them must be.

A failure means: the API server admits a request without asking about a policy, or asks,
and while we are down denies, what every author of a policy excluded.
"""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.limits import JOINED_CONDITIONS_CHARACTERS_MAX, JOINED_CONDITIONS_MAX
from tests.unit.controllers.test_cel_webhooks import (
    PODS,
    SERVICES,
    mutating,
    mutating_webhooks,
    path_of,
    policy,
    webhooks,
)
from tests.unit.expr_cel.evaluate import evaluate

CHEAP: Final = (
    "request.userInfo.username != 'root'",
    "!('masters' in request.userInfo.groups)",
    "request.userInfo.username.startsWith('team-')",
    "object.metadata.name in ['a', 'b']",
    "'skip' in object.metadata.labels",
    "has(object.metadata.labels) && object.metadata.labels['skip'] != 'yes'",
    "!has(object.metadata.labels) || size(object.metadata.labels) > 1",
    "object.metadata.labels.none == 'x'",
    "true",
    "false",
)
COSTLY: Final = (
    "object.spec.ports.all(p, p.port > 1024)",
    "object.metadata.name.matches('^[a-z]+$')",
    "object.metadata.name.contains('web')",
    "object.metadata.name == object.spec.other",
    "object.metadata.name in object.spec.names",
    "object.metadata.name.lowerAscii() == 'web'",
    # Whoever writes the object decides how long these are.
    "'a' in object.spec.userInfo.groups",
    "'a' in object.spec.template.metadata.labels",
    "'a' in oldObject.status.metadata.annotations",
)


def conditional(name: str, *expressions: str, **more: Any) -> dict[str, Any]:
    conditions = [
        {"name": f"c{at}", "expression": text} for at, text in enumerate(expressions)
    ]
    return policy(name, matchConditions=conditions, **more)


def met(expressions: list[str], values: tuple[Any, Any]) -> bool | None:
    """Return whether the API server asks: of several, a false one decides.

    ``values``: the object and the request.

    None: a condition fails, so the failurePolicy decides.
    """
    found = set()
    for text in expressions:
        try:
            found.add(evaluate(text.replace("request.", "x."), *values))
        except ExpressionFailed:
            found.add(None)
    return False if False in found else (None if None in found else True)


REQUESTS: Final = st.fixed_dictionaries(
    {
        "username": st.sampled_from(["root", "team-a", "x"]),
        "groups": st.lists(st.sampled_from(["masters", "others"]), max_size=2),
        "name": st.sampled_from(["a", "c"]),
        "labels": st.none()
        | st.dictionaries(
            st.sampled_from(["skip", "app"]), st.sampled_from(["yes", "no"])
        ),
    }
)
CONDITIONS: Final = st.lists(
    st.lists(st.sampled_from(CHEAP), min_size=1, max_size=3), min_size=2, max_size=6
)


@given(CONDITIONS, REQUESTS)
def test_api_server_asks_if_it_would_ask_for_one_of_the_policies(
    chosen: list[list[str]], asked: dict[str, Any]
) -> None:
    given_policies = [conditional(f"p{at}", *one) for at, one in enumerate(chosen)]
    (found,) = webhooks(*given_policies).values()
    metadata: dict[str, Any] = {"name": asked["name"]}
    if asked["labels"] is not None:
        metadata["labels"] = asked["labels"]
    user = {"username": asked["username"], "groups": asked["groups"]}
    values = ({"metadata": metadata}, {"userInfo": user})
    each = {met(one, values) for one in chosen}
    expected = True if True in each else (None if None in each else False)
    texts = [condition["expression"] for condition in found["matchConditions"]]
    assert met(texts, values) is expected


def test_policies_with_equal_settings_share_a_webhook() -> None:
    timed: dict[str, Any] = {"webhookConfiguration": {"timeoutSeconds": 3}}
    found = webhooks(
        *(conditional(f"c{at}", f"request.name != '{at % 10}'") for at in range(50)),
        *(policy(f"t{at}", **timed) for at in range(50)),
        *(policy(f"e{at}", constraints={"matchPolicy": "Exact"}) for at in range(50)),
    )
    assert len(found) == 3
    served = [name for one in found.values() for name in path_of(one).split("/")[2:]]
    assert len(set(served)) == len(served) == 150
    assert all("finegrained" in name for name in found)


@pytest.mark.parametrize("expression", COSTLY)
def test_conditions_whose_cost_depends_on_the_object_are_not_joined(
    expression: str,
) -> None:
    """A large object could spend the cost limit of all policies of the webhook."""
    cheap, costly = conditional("a", CHEAP[0]), conditional("b", expression)
    assert len(webhooks(cheap, costly)) == 2
    # Equal ones cost as much as one.
    (found,) = webhooks(costly, conditional("c", expression)).values()
    texts = [condition["expression"] for condition in found["matchConditions"]]
    assert texts == [expression]


@pytest.mark.parametrize(
    "other",
    [
        conditional("b", "request.name != 'y'", rules=(PODS,)),
        conditional("b", "request.name != 'y'", failurePolicy="Ignore"),
        conditional("b", "request.name != 'y'", constraints={"matchPolicy": "Exact"}),
        conditional(
            "b",
            "request.name != 'y'",
            constraints={"objectSelector": {"matchLabels": {"a": "b"}}},
        ),
        policy("b"),
    ],
)
def test_policies_for_other_requests_are_not_joined(other: dict[str, Any]) -> None:
    """A request that one author excluded would be denied while we are down."""
    found = webhooks(conditional("a", "request.name != 'x'", rules=(SERVICES,)), other)
    assert sorted(path_of(one) for one in found.values()) == ["/vpol/a", "/vpol/b"]


def test_conditions_of_two_namespaces_are_not_joined() -> None:
    found = webhooks(
        conditional("p", CHEAP[0], namespace="a"),
        conditional("p", CHEAP[1], namespace="b"),
    )
    assert len(found) == 2


def test_policies_that_change_the_object_are_not_joined() -> None:
    """The conditions of the second one are about what the first one has made."""
    condition = {"name": "c", "expression": "request.name != 'x'"}
    found = mutating_webhooks(
        *(mutating(name, matchConditions=[condition]) for name in "ab")
    )
    assert len(found) == 2


def test_joined_conditions_are_bounded() -> None:
    long = "request.name != '{}'".format("x" * (JOINED_CONDITIONS_CHARACTERS_MAX // 3))
    found = webhooks(
        *(conditional(f"p{at}", long.replace("x", f"{at}", 1)) for at in range(6)),
        *(conditional(f"q{at}", f"request.name != '{at}'") for at in range(40)),
    )
    texts = [one["matchConditions"][0]["expression"] for one in found.values()]
    assert all(len(text) < JOINED_CONDITIONS_CHARACTERS_MAX + 10 for text in texts)
    assert all(text.count("!=") <= JOINED_CONDITIONS_MAX for text in texts)
    assert len(found) == 3
