"""Compare split documents with the oracle, which splits nothing.

Room: tests. Takes: documents and contexts made by Hypothesis from related pieces:
values contain variables, braces and escapes, too.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.expr.template.nodes import Document
from tests.oracle import template as oracle

PIECES = [
    "{{ a }}", "{{b}}", "{{ request.object.c }}", "{{ n }}", "{{ nil }}",
    "{{ missing }}",
    "{{ m.k }}", "{{ m }}", "{{ l }}", "{{ l[0] }}", "{{ a.{{b}} }}", "{{{{b}}}}",
    "{{- a }}", "\\{{ a }}", "{{", "}}", "{", "}", "\\", "{{ }}", "{{ a b }}", " ", "x",
    "{{ {k: a} }}", "{{ missing || 'd' }}", "{{ '{' }}", "-", "$", "{{ deep }}",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
SCALARS = TEXTS | st.sampled_from([None, True, 1, 1.5, 10**7])
TREES = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(TEXTS, below, max_size=2)
    ),
    max_leaves=5,
)
CONTEXTS = st.fixed_dictionaries(
    {
        "a": SCALARS,
        "b": st.sampled_from(["a", "x", "k", "{{", "a }}"]),
        "n": st.sampled_from([0, 5, 1.5, 10**7]),
        "nil": st.none(),
        "m": st.dictionaries(st.sampled_from(["k", "{{b}}"]), SCALARS, max_size=2),
        "l": st.lists(SCALARS, max_size=2),
        "deep": TREES,
        "request": st.fixed_dictionaries(
            {
                "object": st.fixed_dictionaries({"c": SCALARS}),
                "oldObject": st.fixed_dictionaries({"c": SCALARS}),
            }
        ),
    }
)


class PlainScope:
    """A scope over a given root."""

    def __init__(self, root: dict[str, Any], operation: str) -> None:
        self.root = root
        self.operation = operation
        self.runtime = Runtime(
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            monotonic_ns=lambda: 0,
            steps=20_000,
            bytes_max=200_000,
        )

    def ensure(self, query: str) -> None:
        """Do nothing: everything is loaded."""


def outcome(call: Any) -> Any:
    try:
        return call()
    except ExpressionFailed as error:
        return ("failed", error.message)


@settings(max_examples=1500)
@given(TREES, CONTEXTS, st.sampled_from(["CREATE", "DELETE"]))
@example("{{ a }}{{b}}", {"a": "", "b": [1]}, "CREATE")
@example({"{{ a }}": 1}, {"a": None}, "CREATE")
@example("{{ a }}", {"a": ["{{ b }}"], "b": "{{ a }}"}, "CREATE")
def test_split_documents_agree_with_the_oracle(
    document: Any, root: dict[str, Any], operation: str
) -> None:
    """Splitting at compile time has no visible effect."""
    scope = PlainScope(root, operation)
    try:
        wanted = outcome(lambda: oracle.substitute(scope, document))
        parsed = parse_document(document)
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(parsed), type=Document)
        fresh = PlainScope(root, operation)
        got = outcome(lambda: link_document(stored)(fresh))
    except (oracle.Endless, BudgetExceeded):
        assume(False)
    assert got == wanted
    assert msgspec.json.encode(got) == msgspec.json.encode(wanted)
    if parsed.is_constant:
        assert parsed.constant == wanted


@settings(max_examples=300)
@given(TREES, CONTEXTS)
def test_malicious_data_terminates(document: Any, root: dict[str, Any]) -> None:
    """Values that contain themselves end in a value or in an input error."""
    root = {**root, "a": "{{ a }}{{ a }}", "deep": ["{{ deep }}", "{{ deep }}"]}
    scope = PlainScope(root, "CREATE")
    try:
        link_document(parse_document(document))(scope)
    except (ExpressionFailed, BudgetExceeded):
        return
