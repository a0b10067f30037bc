"""Every fact of jmespath.yaml: same result or error text as `kyverno jp query`."""

import json
import os
import re
from datetime import UTC, datetime

import pytest
import yaml

from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json
from tests.conformance.place import ABSENT, PRESENT, ROOT

FACTS = ROOT / "jmespath.yaml"
_OF_ARGUMENTS = "Invalid type for", "incorrect number of args", "Invalid arity"


def read_facts() -> list[Json]:
    if not PRESENT:
        return []
    with FACTS.open(encoding="utf-8") as stream:
        facts = yaml.load(stream, Loader=yaml.CSafeLoader)["triples"]
    return [fact for fact in facts if not fact.get("needs-network")]


def answer(fact: Json, *, ints_are_numbers: bool) -> tuple[str, Json]:
    """Run one fact as the CLI does: the input is parsed JSON, numbers are floats."""
    runtime = Runtime(
        now=lambda: datetime.now(UTC),
        monotonic_ns=lambda: 0,
        ints_are_numbers=ints_are_numbers,
        random_bytes=os.urandom,
        resolve_host={"localhost": ["127.0.0.1"]}.__getitem__,
    )
    number = None if ints_are_numbers else float
    value = json.loads(json.dumps(fact["input"]), parse_int=number)
    try:
        query = search(fact["expression"])
    except ExpressionInvalid as error:
        return "compile", error.message
    try:
        result = query(runtime, value)
    except ExpressionFailed as error:
        return "evaluate", error.message
    try:
        return "result", json.loads(json_text(result))
    except ExpressionFailed as error:
        return "output", error.message


@pytest.mark.skipif(not PRESENT, reason=ABSENT)
@pytest.mark.parametrize("fact", read_facts(), ids=lambda fact: fact["id"])
@pytest.mark.parametrize("ints_are_numbers", [False, True], ids=["floats", "ints"])
def test_jmespath_fact(fact: Json, ints_are_numbers: bool) -> None:  # noqa: FBT001 - a parameter of the test
    error = fact.get("error")
    wanted = (error["when"], error["message"]) if error else ("result", fact["result"])
    got = answer(fact, ints_are_numbers=ints_are_numbers)
    if error and error["message"].startswith(_OF_ARGUMENTS):
        # Here, the function and the argument are named before the same text.
        prefix = r"^JMESPath function '\w+': (argument #\d: )?"
        got = got[0], re.sub(prefix, "", str(got[1]))
    if (
        error
        and "Types mismatch" in error["message"]
        and re.search(r"'[0-9]+m'", fact["expression"])
    ):
        # Here, "m" is minutes beside a duration (docs/differences.md).
        assert got[0] == "result"
        return
    # Maps have no order in Go: an object's values can come in any order.
    if (got != wanted and ".*" in fact["expression"]) or fact["expression"][:1] == "*":
        got, wanted = unordered(got), unordered(wanted)
    assert got == wanted


def unordered(outcome: tuple[str, Json]) -> tuple[str, Json]:
    kind, value = outcome
    if isinstance(value, list):
        return kind, sorted(value, key=json.dumps)
    return outcome
