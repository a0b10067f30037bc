"""All expressions of a CEL policy are known before the policy is evaluated.

A failure means: the Namespace or the old object that an expression reads is not
provided, and the expression's default value decides.
"""

import types
from collections.abc import Iterator
from itertools import count
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program.validating_policy.reads import expressions_of


def full(wanted: Any, texts: Iterator[int], place: str = "") -> Any:
    """Return a record whose expressions are all set, each with its place as text.

    Scalars and JSON have no expressions, so their value does not matter.
    """
    if wanted is Expression:
        return Expression(f"{place}#{next(texts)}")
    if get_origin(wanted) in (Union, types.UnionType):
        kinds = [one for one in get_args(wanted) if has_expressions(one)]
        return full(kinds[0], texts, place) if kinds else None
    if get_origin(wanted) is tuple:
        kinds = [one for one in get_args(wanted) if one is not Ellipsis]
        return tuple(full(one, texts, place) for one in kinds)
    if has_expressions(wanted):
        return wanted(
            **{
                name: full(hint, texts, f"{place}.{name}")
                for name, hint in get_type_hints(wanted).items()
            }
        )
    return None


def has_expressions(wanted: Any) -> bool:
    if wanted is Expression:
        return True
    if get_args(wanted):
        return any(map(has_expressions, get_args(wanted)))
    if not (isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)):
        return False
    # A PolicyIR holds the rules of a ClusterPolicy; CEL policies only have its names.
    return wanted is not PolicyIR and any(
        map(has_expressions, get_type_hints(wanted).values())
    )


def expressions_in(value: Any) -> Iterator[Expression]:
    if isinstance(value, Expression):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from expressions_in(one)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from expressions_in(getattr(value, name))


POLICIES: list[tuple[Any, int, set[str]]] = [
    (ValidatingPolicyIR, 6, set()),
    (ImageValidatingPolicyIR, 15, set()),
    (
        MutatingPolicyIR,
        7,
        # The background pool evaluates these, with all data.
        {".targets.expression", ".bodies.target_conditions.expression"},
    ),
    (GeneratingPolicyIR, 6, set()),
]


@pytest.mark.parametrize(
    ("kind", "least", "others"), POLICIES, ids=[one[0].__name__ for one in POLICIES]
)
def test_each_expression_is_known(kind: Any, least: int, others: set[str]) -> None:
    """Also those in fields that are added to the records later."""
    policy = full(kind, count())
    every = {one.text for one in expressions_in(policy)}
    assert len(every) >= least
    known = [one.text for one in expressions_of(policy)]
    assert len(set(known)) == len(known)
    assert {text.partition("#")[0] for text in every - set(known)} == others
