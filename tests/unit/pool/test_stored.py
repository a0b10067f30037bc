"""Which PolicyExceptions a pool applies to which policies.

A failure means: the exception of one tenant disables the policy of another, or the
operator's choice of a namespace has no effect.
"""

import pytest

from kyverno_mp.pool.stored import names_policy, namespace_of_exceptions


@pytest.mark.parametrize(
    ("exceptions_in", "policy_namespace", "namespace"),
    [
        ("*", "", ""),
        ("*", "a", "a"),
        ("a", "a", "a"),
        ("operators", "", "operators"),
        ("operators", "a", "operators"),
    ],
)
def test_namespace_of_exceptions(
    exceptions_in: str, policy_namespace: str, namespace: str
) -> None:
    assert namespace_of_exceptions(exceptions_in, policy_namespace) == namespace


@pytest.mark.parametrize(
    ("references", "is_named"),
    [
        ([{"name": "p", "kind": "GeneratingPolicy"}], True),
        ([{"name": "q", "kind": "GeneratingPolicy"}], False),
        ([{"name": "p", "kind": "NamespacedGeneratingPolicy"}], False),
        ([], False),
        (None, False),
    ],
)
def test_policy_is_named_with_its_kind(
    references: list[dict[str, str]] | None, *, is_named: bool
) -> None:
    exception = {"spec": {"policyRefs": references}}
    assert names_policy(exception, "GeneratingPolicy", "p") is is_named
