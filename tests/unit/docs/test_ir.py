"""docs/ir.md describes every record and field of the IR, and nothing else.

The page is the contract for other front ends and evaluators, like OPA's page on its IR.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

import msgspec
import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.ir.index import IndexEntryIR
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.policy.reading.load import load
from tests.unit.docs.citing import ROOT

PAGE = (ROOT / "docs/ir.md").read_text()
MODULES = sorted(
    path for path in (ROOT / "kyverno_mp/ir").glob("*.py") if path.stem != "__init__"
)
Row = tuple[str, str, str]


def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in MODULES]


def records() -> dict[str, list[Row]]:
    """Return (field, type, default) for each record in the code."""
    return {
        found.name: [
            _field(one) for one in found.body if isinstance(one, ast.AnnAssign)
        ]
        for _, tree in trees()
        for found in tree.body
        if isinstance(found, ast.ClassDef)
    }


def _field(node: ast.AnnAssign) -> Row:
    default = "" if node.value is None else ast.unparse(node.value)
    return _words(ast.unparse(node.target), ast.unparse(node.annotation), default)


def _words(name: str, kind: str, default: str) -> Row:
    return name, kind.replace("'", ""), default.replace("'", '"')


def constants() -> dict[str, str]:
    return {
        ast.unparse(node.target): ast.unparse(node.value).replace("'", '"')
        for _, tree in trees()
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and node.value is not None
        if ast.unparse(node.annotation) == "Final"
    }


def cells(line: str) -> list[str]:
    """Split a table row into cells; a bar within a cell is escaped."""
    parts = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [part.strip().strip("`").replace("\\|", "|") for part in parts]


def told(page: str) -> dict[str, list[list[str]]]:
    """Return the table rows below each record's heading."""
    found: dict[str, list[list[str]]] = {}
    for part in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        rows = [
            cells(line)
            for line in rest.split("\n## ")[0].splitlines()
            if line[:3] == "| `"
        ]
        found[name] = rows
    return found


def test_every_documented_record_is_a_struct() -> None:
    """Records that are no msgspec structs would be missed by the tests below."""
    names = set()
    for path in MODULES:
        module = importlib.import_module(f"kyverno_mp.ir.{path.stem}")
        for name, value in inspect.getmembers(module, inspect.isclass):
            if value.__module__ == module.__name__:
                assert issubclass(value, msgspec.Struct)
                names.add(name)
    assert names == set(records()) == set(told(PAGE))


@pytest.mark.parametrize("name", sorted(records()))
def test_fields_are_documented(name: str) -> None:
    """The page lists fields in layout order, with type, default and meaning."""
    rows = told(PAGE)[name]
    assert [_words(*row[:3]) for row in rows] == records()[name]
    assert all(len(row) == 4 and row[3] for row in rows)


def test_constants_are_documented() -> None:
    rows = [
        cells(line) for line in PAGE.splitlines() if re.match(r"\| `[A-Z_]+` \|", line)
    ]
    assert {row[0]: row[1].replace("'", '"') for row in rows} == constants()


def test_layout_version_is_documented() -> None:
    found = re.search(r"`LAYOUT_VERSION` \(now (\d+)\)", PAGE)
    assert found is not None
    assert found[1] == constants()["LAYOUT_VERSION"]


def test_example_equals_the_compilers_output() -> None:
    text = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert text is not None
    compiled, entries = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (raw,) = load(text[1].encode(), file="ir.md")
    document = decode(raw.raw)
    assert isinstance(document, ClusterPolicy)
    policy = compile_policy(document)
    assert msgspec.json.decode(compiled, type=CompiledPolicy) == policy
    keys = msgspec.json.decode(entries, type=tuple[tuple[IndexEntryIR, ...], ...])
    assert keys == encode_policy(policy).entries
