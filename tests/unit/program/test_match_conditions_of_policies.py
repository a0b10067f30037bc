"""matchConditions gate their own policy, and are never a way around one.

Red means: a condition of one policy lifts another one, or an object that makes a
condition costly is let in unjudged.
"""

import json
from typing import Any

import pytest

from tests.fuzz.bench import Bench, pod, review


def policy(name: str, *conditions: str) -> str:
    """Return a policy that refuses every Pod for which its conditions hold."""
    hooks = {"matchConditions": [{"name": "c", "expression": e} for e in conditions]}
    return json.dumps(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": name},
            "spec": {
                "background": False,
                **({"webhookConfiguration": hooks} if conditions else {}),
                "rules": [
                    {
                        "name": "r",
                        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                        "validate": {
                            "failureAction": "Enforce",
                            "message": f"{name} says no",
                            "deny": {},
                        },
                    }
                ],
            },
        }
    )


def refused_by(*policies: str, **parts: Any) -> str:
    """Return the message of the denial, "" when the Pod is let in."""
    body = json.dumps(review(pod(**parts))).encode()
    response = Bench("\n---\n".join(policies)).post(body)
    return "" if response["allowed"] else response["status"]["message"]


@pytest.mark.parametrize("first", [True, False])
def test_a_condition_counts_for_its_own_policy(first: bool) -> None:  # noqa: FBT001 - a parameter
    gated, plain = policy("gated", "object.metadata.name == 'no'"), policy("plain")
    message = refused_by(*((gated, plain) if first else (plain, gated)))
    assert "plain says no" in message
    assert "gated says no" not in message


def test_conditions_of_two_policies_differ() -> None:
    yes, no = policy("yes", "1 == 1"), policy("no", "1 == 2")
    for order in ((yes, no), (no, yes)):
        message = refused_by(*order)
        assert "yes says no" in message
        assert "no says no" not in message


def test_a_costly_condition_does_not_let_pass() -> None:
    costly = "object.spec.xs.all(x, object.spec.xs.all(y, y != 'q'))"
    message = refused_by(policy("p", costly), xs=["abcdefgh"] * 3000)
    assert "not judged (cel.cost)" in message
