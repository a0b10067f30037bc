"""Any bytes give documents or an InputError, never a crash; round trips are stable."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.errors import InputError
from kyverno_mp.policy.check import check, first_error_like_upstream
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.reading.decode import KINDS, examine
from kyverno_mp.policy.reading.load import load
from kyverno_mp.policy.reading.shape import Shape, shape_of

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(
        [
            "",
            "*",
            "Pod",
            "v1/Pod",
            "{{ x }}",
            "{{ request.object.spec }}",
            "{{",
            "a",
            "=(a)",
        ]
    )
)
JSON = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "any", "all", "key"]), below, max_size=3
        )
    ),
    max_leaves=8,
)


def names_of(shape: Shape, seen: set[int]) -> set[str]:
    """Collect the field names of a record and of its nested records."""
    if id(shape) in seen:
        return set()
    seen.add(id(shape))
    found = set(getattr(shape, "fields", {}))
    below = [*getattr(shape, "fields", {}).values()]
    item = getattr(shape, "item", None)
    if item is not None:
        below.append(item)
    for one in below:
        found |= names_of(one, seen)
    return found


KEYS = sorted(names_of(shape_of(ClusterPolicy), set()))


def records(depth: int) -> st.SearchStrategy[Any]:
    below = JSON if depth == 0 else records(depth - 1)
    wild = st.dictionaries(st.sampled_from(KEYS), JSON | below, max_size=4)
    return wild | st.lists(wild, max_size=2)


RULES = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["r", "s", "autogen-r"]),
        "match": st.just({"any": [{"resources": {"kinds": ["Pod"]}}]}) | records(2),
    },
    optional={
        "exclude": records(1),
        "preconditions": JSON,
        "context": records(1),
        "validate": st.fixed_dictionaries(
            {},
            optional={
                "message": SCALARS,
                "pattern": JSON,
                "anyPattern": JSON,
                "deny": st.fixed_dictionaries({"conditions": JSON}),
                "foreach": records(1),
            },
        ),
        "mutate": records(1),
        "verifyImages": records(2),
        "generate": records(1),
    },
)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_bytes_never_crash(text: bytes | str) -> None:
    try:
        documents = load(text)
    except InputError:
        return
    for document in documents:
        assert examine(document.raw).document is None


@given(JSON)
def test_json_text_is_decoded_unchanged(value: Any) -> None:
    raw = {"a": value}
    (document,) = load(msgspec.json.encode(raw))
    assert document.raw == raw


@settings(max_examples=300)
@given(st.sampled_from(sorted(KINDS)), st.lists(RULES, max_size=3), records(1))
def test_documents_never_crash(kind: str, rules: list[Any], more: Any) -> None:
    spec = {**(more if type(more) is dict else {}), "rules": rules}
    raw = {
        "apiVersion": KINDS[kind][1][0],
        "kind": kind,
        "metadata": {"name": "p"},
        "spec": spec,
    }
    decoded = examine(raw)
    document = decoded.document
    if document is None:
        assert decoded.problems
        return
    assert examine(document.raw()).document == document
    findings = check(document)
    text = first_error_like_upstream(document)
    assert not text or findings.problems
    if isinstance(document, ClusterPolicy | Policy):
        expanded = expand(document)
        assert len({rule.name for rule in expanded}) <= len(expanded)
