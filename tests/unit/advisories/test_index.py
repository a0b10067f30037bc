"""Every advisory has a row, and every row names existing tests."""

import ast
from functools import lru_cache
from pathlib import Path

import pytest

from tests.unit.advisories.index import INDEX

_PROJECT = Path(__file__).resolve().parents[3]


@lru_cache
def _functions(file: str) -> frozenset[str]:
    tree = ast.parse((_PROJECT / file).read_text())
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    )


def test_table_has_28_advisories() -> None:
    assert list(INDEX) == list(range(1, 29))


def test_advisories_are_unique() -> None:
    ids = [one for row in INDEX.values() for one in row.ids.split()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("number", INDEX)
def test_tests_of_each_advisory_exist(number: int) -> None:
    row = INDEX[number]
    assert row.ids
    assert row.tests or row.later
    for name in row.tests:
        file, _, function = name.partition("::")
        assert function.startswith("test_")
        assert function in _functions(file), name
