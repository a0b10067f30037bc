"""No function or class of the product exists only for tests.

A failure means: no module of kyverno_mp uses a function or class any more. Remove it
and let its tests use the product's functions, or add it to KEPT with the reason.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pytest

from tests.style import PACKAGE, nodes_of, syntax_trees

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

KEPT = {
    "cli.output.screen.Screen.writelines": "libraries call it on sys.stdout",
    "cleanup.ttl.timers.Timers.work_due": "for tests that turn the clock",
    "compiler.autogen.rules.expand_for_kind": "upstream's view of one kind, for fuzz",
    "egress.registries.RegistryTransport.host_count": "its bound is seen only here",
    "kube.connection.TimedSocket.makefile": "http.client calls it",
    "kube.pool.Pool.idle_count": "what a pool keeps is seen from outside only here",
    "pool.coordinator.Coordinator.is_working": "the state that tests wait for",
    "pool.evaluators.Evaluators.connected_count": "the state that tests wait for",
    "queues.reconcile.Controllers.work_due": "runs controllers with a turned clock",
    "reports.scan.dispatch.Dispatch.work_due": "runs the pool with a turned clock",
    "settings.upstream.variable_table": "generates docs/settings.md",
    "webhook.authz.http_app.HttpAuthorizer.on_options": "Falcon calls it",
    "webhook.authz.http_app.HttpAuthorizer.on_post": "Falcon calls it",
    "webhook.authz.requests._Reader.on_body": "httptools calls it",
    "webhook.authz.requests._Reader.on_header": "httptools calls it",
    "webhook.authz.requests._Reader.on_headers_complete": "httptools calls it",
    "webhook.authz.requests._Reader.on_message_complete": "httptools calls it",
    "webhook.authz.requests._Reader.on_url": "httptools calls it",
    "webhook.rest._Liveness.on_get": "Falcon calls it",
    "webhook.payloads.JsonPayloads.on_options": "Falcon calls it",
    "webhook.payloads.JsonPayloads.on_post": "Falcon calls it",
    "webhook.rest._PolicyReview.on_post": "Falcon calls it",
    "webhook.rest._Readiness.on_get": "Falcon calls it",
    "webhook.rest._Review.on_post": "Falcon calls it",
    "webhook.rest._TtlReview.on_post": "Falcon calls it",
}
"""Names that only tests or a library use, with the reason to keep them."""

NAMES_ONLY = frozenset(
    {
        *("abstractmethod", "asynccontextmanager", "cache", "classmethod"),
        *("contextmanager", "dataclass", "lru_cache", "overload", "property"),
        *("runtime_checkable", "setter", "staticmethod", "total_ordering"),
    }
)
"""Decorators that register nothing; other decorators count as a caller."""


@dataclass(frozen=True)
class Module:
    """One parsed module."""

    name: str
    tree: ast.Module

    def definitions(self) -> Iterator[tuple[str, Definition]]:
        """Yield functions, classes and methods that have no implicit caller."""
        for node in self.tree.body:
            if isinstance(node, Definition) and not _is_registered(node):
                yield f"{self.name}.{node.name}", node
            if isinstance(node, ast.ClassDef) and self._is_own(node):
                for inner in node.body:
                    if isinstance(inner, Definition) and not _is_registered(inner):
                        yield f"{self.name}.{node.name}.{inner.name}", inner

    def _is_own(self, node: ast.ClassDef) -> bool:
        """Return whether the class has no base class that calls its methods."""
        bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
        return all(base in {"Generic", "NamedTuple", "Protocol"} for base in bases)

    @cached_property
    def names(self) -> Counter[str]:
        """Count each name; attributes have a dot before the name."""
        return _names(self.tree)


def _names(tree: ast.AST) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in nodes_of(tree):
        if isinstance(node, ast.Name):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute):
            found[f".{node.attr}"] += 1
    return found


def _is_registered(node: Definition) -> bool:
    called = [
        decorator.func if isinstance(decorator, ast.Call) else decorator
        for decorator in node.decorator_list
    ]
    names = {ast.unparse(each).rpartition(".")[2] for each in called}
    return not names <= NAMES_ONLY


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def unused(modules: list[Module]) -> list[str]:
    """Return the names that no module uses outside their own definitions."""
    imported = {
        (node.module, alias.name)
        for module in modules
        for node in nodes_of(module.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    attributes: Counter[str] = Counter()
    for module in modules:
        attributes.update(module.names)
    found = []
    for module in modules:
        for path, node in module.definitions():
            is_outer = path == f"{module.name}.{node.name}"
            is_used = (
                _is_special(node.name)
                or (is_outer and (f"kyverno_mp.{module.name}", node.name) in imported)
                or attributes[f".{node.name}"] > module.names[f".{node.name}"]
                or _is_used(node, attributes, module.names if is_outer else Counter())
            )
            if not is_used:
                found.append(path)
    return sorted(found)


def _is_used(node: Definition, attributes: Counter[str], names: Counter[str]) -> bool:
    """Return whether attributes, or names, occur outside the definition itself."""
    within, name = _names(node), node.name
    return attributes[f".{name}"] > within[f".{name}"] or names[name] > within[name]


def product() -> list[Module]:
    """Return the modules of the package."""
    return [
        Module(".".join(path.relative_to(PACKAGE).with_suffix("").parts), tree)
        for path, tree in syntax_trees().items()
    ]


# It parses the whole package: ten seconds of CPU, minutes on a busy machine.
@pytest.mark.timeout(1200)
def test_unused_functions_are_listed() -> None:
    found = set(unused(product()))
    assert found - set(KEPT) == set(), "remove them, or add them with a reason"
    assert set(KEPT) - found == set(), "they are used, or gone: remove the entries"


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("def f(): return f()", ["a.f"]),
        ("def f(): ...\nf()", []),
        ("@cache\ndef f(): ...", ["a.f"]),
        ("@group.command('x')\ndef f(): ...", []),
        ("class C:\n  def m(self): self.m()\nC()", ["a.C.m"]),
        ("class C:\n  def m(self): ...\nC().m()", []),
        ("class C(Thread):\n  def run(self): ...\nC()", []),
        ("class C:\n  def __len__(self): ...\nC()", []),
    ],
)
def test_uses_are_recognized(source: str, wanted: list[str]) -> None:
    """A recursive call is not a use; registration and inheritance are."""
    assert unused([Module("a", ast.parse(source))]) == wanted
