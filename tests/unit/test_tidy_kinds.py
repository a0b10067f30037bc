"""The table of kinds of policies is the only list of them.

A failure means: a module names a kind instead of a row of the table, so that the next
kind, or a new version of one, has to be added there too.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

import pytest

from kyverno_mp.policy.cel_kinds.policies import is_cel_policy
from kyverno_mp.policy.cel_kinds.served import is_served
from kyverno_mp.policy.crd.generate import ALL_KINDS
from kyverno_mp.policy.reading.decode import is_known_kind
from kyverno_mp.program.cel_sources import EXECUTED
from kyverno_mp.reports.scanned_kinds import RECORD_OF
from kyverno_mp.snapshot.control import SEGMENTS
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_POLICY_KINDS,
    CEL_SEGMENTS,
    POLICY_KINDS,
    REVIEWED_CEL_KINDS,
    StoredKind,
)
from tests.style import (
    code_of,
    docstrings,
    modules_by_kind,
    nodes_of,
    parsed,
    pattern_of,
    sources,
)

TABLE: Final = "kyverno_mp/values/kubernetes/policy_kinds.py"
FILES_MAX: Final = {
    "ClusterPolicy": 10,
    "ClusterCleanupPolicy": 4,
    "ValidatingPolicy": 14,
    "MutatingPolicy": 14,
    "ImageValidatingPolicy": 12,
    "GeneratingPolicy": 12,
    "DeletingPolicy": 12,
}
"""How many modules name a kind in their code: lower these numbers, never raise them."""
SLACK: Final = 3
"""How far a number may be above the code, so that branches merge."""
LITERAL_IN: Final = {
    "kyverno_mp/policy/documents/cluster_policy.py",
    "kyverno_mp/policy/documents/cleanup_policy.py",
    "kyverno_mp/policy/cel_kinds/validating_policy.py",
    "kyverno_mp/policy/cel_kinds/image_validating_policy.py",
    "kyverno_mp/policy/cel_kinds/policies.py",
}
"""The documents, whose types name the kinds that they accept; nothing else."""


def literals_of(source: str) -> Iterator[str]:
    """Yield the strings of the code that are not sentences."""
    tree = parsed(source)
    skipped = {id(one) for one in docstrings(tree)}
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant) and id(node) not in skipped:
            yield str(node.value)


def modules() -> dict[str, str]:
    """Return the source of each module except the table."""
    found = sources()
    del found[TABLE]
    return found


def test_modules_that_name_a_kind_become_fewer() -> None:
    counts = modules_by_kind(modules())
    assert counts.keys() == FILES_MAX.keys(), "each row has its number"
    more = {name: n for name, n in counts.items() if n > FILES_MAX[name]}
    fewer = {name: n for name, n in counts.items() if n < FILES_MAX[name] - SLACK}
    assert not more, "more modules name these kinds than before: use the table"
    assert not fewer, "fewer modules name these kinds: lower FILES_MAX"


def test_only_documents_list_kinds() -> None:
    names = {name for row in POLICY_KINDS for name in row.names} - {"Policy"}
    names |= {one.plural for row in POLICY_KINDS for one in row.stored} - {"policies"}
    names |= {"celpolicies", "imagevalidating"}
    written = re.compile("|".join(names))
    listed = {
        module
        for module, source in modules().items()
        if written.search(source)
        and any(text.partition("/")[0] in names for text in literals_of(source))
    }
    assert listed == LITERAL_IN


@pytest.mark.parametrize(
    ("source", "is_named"),
    [
        ('KINDS = ("MutatingPolicy",)', True),
        ("class LinkedMutatingPolicy: ...", True),
        ("MUTATING_POLICIES = 1", True),
        ('"""MutatingPolicy."""', False),
        ("a = 1  # MutatingPolicy", False),
        ("class MutatingAdmissionPolicy: ...", False),
    ],
)
def test_names_are_recognized(source: str, *, is_named: bool) -> None:
    row = next(one for one in POLICY_KINDS if one.name == "MutatingPolicy")
    assert bool(pattern_of(row).search(" ".join(code_of(source)))) is is_named


def test_rows_are_complete() -> None:
    """A failure means: a kind would be stored, registered or published as another."""
    stored = [one for row in POLICY_KINDS for one in row.stored]
    assert len({one.kind for one in stored}) == len(stored)
    assert len({(one.group, one.plural) for one in stored}) == len(stored)
    assert [one.namespaced for one in stored] == [False, True] * len(POLICY_KINDS)
    assert all(one.version in one.versions for one in stored)
    segments = [row.segment for row in POLICY_KINDS if row.segment]
    assert len(set(segments)) == len(segments)
    assert all(len(one) <= 16 for one in segments)
    reviews = [
        one for row in POLICY_KINDS for one in (row.validating, row.mutating) if one
    ]
    paths = [path for one in reviews for path in (one.path, one.namespaced_path)]
    assert len(set(paths)) == len(paths)
    for row in CEL_POLICY_KINDS:
        assert bool(row.segment) == bool(row.validating or row.mutating)
        assert bool(row.segment) == bool(row.rule_type)
    # The reports pool follows the segment of each kind.
    assert set(RECORD_OF) == set(CEL_SEGMENTS)


def _stored() -> list[StoredKind]:
    return [one for row in POLICY_KINDS for one in row.stored]


@pytest.mark.parametrize("stored", _stored(), ids=lambda one: one.kind)
def test_each_version_of_each_kind_is_read(stored: StoredKind) -> None:
    """A failure means: a row has no document, so its policies are ignored."""
    for api_version in stored.api_versions:
        raw = {"apiVersion": api_version, "kind": stored.kind}
        assert is_known_kind(raw) or is_served(raw) or is_cel_policy(raw)


@pytest.mark.parametrize("stored", _stored(), ids=lambda one: one.kind)
def test_each_kind_has_a_definition(stored: StoredKind) -> None:
    (kind,) = (
        one for one in ALL_KINDS if (one.group, one.kind) == (stored.group, stored.kind)
    )
    assert kind.plural == stored.plural
    assert kind.is_namespaced is stored.namespaced
    assert {one.name for one in kind.versions} == set(stored.versions)


def test_each_kind_in_reviews_reaches_workers() -> None:
    """A failure means: policies of a kind are published, but no worker links them."""
    assert set(EXECUTED) == set(REVIEWED_CEL_KINDS)
    assert {row.segment for row in POLICY_KINDS if row.segment} <= set(SEGMENTS)
