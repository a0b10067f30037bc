"""Conditions that are evaluated before ``variables`` has a value.

Expected: docs/behaviour/cel 5, as in the real program. A failure means: a condition
reads a value that upstream does not have there, so it exempts an object or skips a
policy.
"""

from typing import Any

import pytest

from tests.unit.program import test_cel_policies as other_kinds
from tests.unit.program import test_image_policies as of_images
from tests.unit.program import test_validating_policy as validating

VARIABLES = [{"name": "x", "expression": "true"}]
READS = [
    "variables.x",
    "!variables.x",
    "has(variables.x)",
    "variables.?x.hasValue()",
    "dyn(variables).x == true",
    "dyn(variables)['x'] == true",
    "variables == variables",
    "type(variables) == type(1)",
    "[variables].size() == 1",
    "{'a': variables}.size() == 1",
    "[1].exists(i, variables.x)",
    "variables.x && true",
]
UNUSED = [
    "true || variables.x",
    "variables.x || true",
    "cel.bind(v, variables, true)",
    "[true].all(variables, variables)",
]
UNTYPED = [one for one in READS if "variables.x" not in one and "?x" not in one]
NO_VALUE = "no such attribute(s): variables"


def conditions(text: str) -> list[dict[str, str]]:
    return [{"name": "c", "expression": text}]


def exempted(text: str, **spec: Any) -> Any:
    """Return the verdict of a ValidatingPolicy with one exception."""
    given = {**validating.validations("false"), "variables": VARIABLES, **spec}
    polex = validating.exception(matchConditions=conditions(text))
    return validating.verdict(given, polex)


@pytest.mark.parametrize("text", READS)
def test_exception_to_a_validating_policy(text: str) -> None:
    wanted = ("evaluation", "error", f"failed to load context: {NO_VALUE}")
    assert exempted(text) == wanted
    # The failure policy applies to the conditions of exceptions, too.
    assert exempted(text, failurePolicy="Ignore")[1] == "fail"


@pytest.mark.parametrize("text", UNUSED)
def test_variables_may_be_unused(text: str) -> None:
    assert exempted(text)[:2] == ("exception", "skip")


@pytest.mark.parametrize("text", UNTYPED)
def test_conditions_of_a_validating_policy(text: str) -> None:
    """The compiler knows no variable there, so the conditions are untyped."""
    spec = {
        **validating.validations("true"),
        "variables": VARIABLES,
        "matchConditions": conditions(text),
    }
    wanted = ("evaluation", "error", f"failed to load context: {NO_VALUE}")
    assert validating.verdict(spec) == wanted
    ignored = validating.verdict({**spec, "failurePolicy": "Ignore"})
    assert ignored == ("", "skip", "skip")


@pytest.mark.parametrize("text", READS)
def test_exception_to_a_mutating_policy(text: str) -> None:
    spec = {**other_kinds.apply_mutations(other_kinds.LABEL), "variables": VARIABLES}
    polex = other_kinds.exception("MutatingPolicy", matchConditions=conditions(text))
    answer = other_kinds.first(spec, exceptions=[polex])
    wanted = ("evaluation", "error", f"failed to evaluate policy: {NO_VALUE}")
    assert other_kinds.verdict(answer) == wanted


def test_conditions_of_a_mutating_policy_read_variables() -> None:
    spec = {
        **other_kinds.apply_mutations(other_kinds.LABEL),
        "variables": VARIABLES,
        "matchConditions": conditions("variables.x"),
    }
    assert other_kinds.verdict(other_kinds.first(spec)) == ("", "pass", "success")


@pytest.mark.parametrize("text", READS)
def test_exception_to_a_generating_policy(text: str) -> None:
    spec = {**other_kinds.generates("true"), "variables": VARIABLES}
    polex = other_kinds.exception("GeneratingPolicy", matchConditions=conditions(text))
    found = other_kinds.generated(spec, exceptions=[polex])[0]
    assert found is not None
    assert (found.status, found.message) == (
        "error",
        f"failed to evaluate policy: {NO_VALUE}",
    )


@pytest.mark.parametrize("text", UNTYPED)
def test_conditions_of_a_generating_policy(text: str) -> None:
    spec = {
        **other_kinds.generates("true"),
        "variables": VARIABLES,
        "matchConditions": conditions(text),
    }
    found = other_kinds.generated(spec)[0]
    assert found is not None
    assert found.message == f"failed to evaluate policy: {NO_VALUE}"


def test_exception_to_a_deleting_policy_reads_variables() -> None:
    polex = other_kinds.exception(
        "DeletingPolicy", matchConditions=conditions("variables.x")
    )
    spec = {**other_kinds.conditions("variables.x"), "variables": VARIABLES}
    assert other_kinds.selects(spec)
    assert not other_kinds.selects(spec, exceptions=[polex])


NAMES_OF_IMAGES = ["variables", "images", "attestors", "attestations"]


@pytest.mark.parametrize("name", NAMES_OF_IMAGES)
@pytest.mark.parametrize("text", ["dyn({}) == null", "dyn({}).key != ''", "{} == {}"])
def test_conditions_of_an_image_policy(name: str, text: str) -> None:
    text = text.replace("{}", name)
    wanted = of_images.failed(f"no such attribute(s): {name}")
    policy = of_images.document("true", matchConditions=conditions(text))
    assert of_images.verdict(policy, of_images.pod("a")) == wanted


@pytest.mark.parametrize("name", NAMES_OF_IMAGES)
def test_exception_to_an_image_policy(name: str) -> None:
    polex = of_images._exception(matchConditions=conditions(f"{name} == {name}"))
    policy = of_images.document("false", variables=VARIABLES)
    wanted = of_images.failed(f"no such attribute(s): {name}")
    assert of_images.verdict(policy, of_images.pod("a"), polex) == wanted


def test_exception_to_an_image_policy_knows_the_types_of_variables() -> None:
    polex = of_images._exception(matchConditions=conditions("variables.x"))
    policy = of_images.document("false", variables=VARIABLES)
    wanted = of_images.failed(NO_VALUE)
    assert of_images.verdict(policy, of_images.pod("a"), polex) == wanted


def test_extractor_reads_no_attestations() -> None:
    images = [{"name": "i", "expression": "[attestations.sbom]"}]
    wanted = of_images.failed("no such attribute(s): attestations")
    policy = of_images.document("true", images=images)
    assert of_images.verdict(policy, of_images.pod("a")) == wanted
