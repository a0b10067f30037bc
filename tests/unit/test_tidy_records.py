"""msgspec builds what it knows about a type while a module is imported, never later.

A failure means: two threads that use the type for the first time at once would end the
process (kyverno_mp/values/records.py). Create a RecordType or a Decoder at the top
level of the module and use it in the function.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style import nodes_of, parsed

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kyverno_mp"
HELPER = PACKAGE / "values" / "records.py"
WITHOUT_FIELDS = frozenset(
    {"Any", "Json", "bool", "dict", "float", "int", "list", "msgspec", "str", "tuple"}
)
"""Types that need no information; ``msgspec.Raw`` is one."""
WORDS = ("convert", "RecordType", "Decoder", "field_decoders", "msgspec.")
"""What a module with such a call contains; it is slow to parse all others."""
MODULES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    # The command line decodes in one thread, and must start fast.
    if path != HELPER and path.relative_to(PACKAGE).parts[0] != "cli"
]


def _in_functions(tree: ast.Module) -> Iterator[ast.Call]:
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from (one for one in nodes_of(node) if isinstance(one, ast.Call))


def _builds_late(call: ast.Call) -> bool:
    """Return whether the call builds what msgspec knows about a type with fields."""
    name = ast.unparse(call.func)
    if name in ("msgspec.convert", "convert", "RecordType", "field_decoders"):
        return True
    typed = [each.value for each in call.keywords if each.arg == "type"]
    if name.endswith(".Decoder") or name == "Decoder":
        typed += call.args
    elif not (name.startswith("msgspec.") and name.endswith(".decode")):
        return False
    names = {
        one.id for each in typed for one in ast.walk(each) if isinstance(one, ast.Name)
    }
    return bool(names - WITHOUT_FIELDS)


@pytest.mark.parametrize(
    "source",
    [
        "def f(raw):\n    return msgspec.convert(raw, Policy)",
        "def f(raw):\n    return msgspec.json.decode(raw, type=list[Policy])",
        "def f(raw):\n    return msgspec.msgpack.Decoder(Policy).decode(raw)",
        "def f(raw):\n    return RecordType(Policy).convert(raw)",
        "def f(raw):\n    return field_decoders(Policy)",
    ],
)
def test_guard_finds_late_types(source: str) -> None:
    assert any(map(_builds_late, _in_functions(ast.parse(source))))


def test_types_are_built_at_import() -> None:
    sources = {path: path.read_text() for path in MODULES}
    late = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)}"
        for path, source in sources.items()
        if any(word in source for word in WORDS)
        for call in _in_functions(parsed(source))
        if _builds_late(call)
    ]

    assert late == []


_AT_ONCE = """
import sys, threading
from kyverno_mp.policy.reading.decode import decode
raw = {"kind": "ClusterPolicy", "apiVersion": "kyverno.io/v1",
       "metadata": {"name": "p"}, "spec": {"rules": []}}
barrier = threading.Barrier(4)
def first():
    barrier.wait()
    decode(raw)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=first) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
"""


def test_first_decoding_in_several_threads() -> None:
    """In a new process, because only the first use of a type builds it."""
    ended = subprocess.run([sys.executable, "-c", _AT_ONCE], cwd=ROOT, check=False)

    assert ended.returncode == 0
