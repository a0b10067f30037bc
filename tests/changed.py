"""Run the tests that a change can reach: ``python -m tests.changed [--base REV]``.

The change is what differs from where this branch left REV, with what is not committed.
A test file reaches the modules that it imports, and theirs; the modules that its texts
name, as for a subprocess; its conftest.py; and the other files that a text of these
modules names. A file that nothing names reaches every test: a test too many costs
seconds, a missing one breaks the main branch.

Takes: the tree, git's list of changes. Gives: pytest's exit code. May touch: nothing.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from tests.style import nodes_of

ROOT: Final = Path(__file__).resolve().parents[1]
CODE: Final = ("kyverno_mp", "tests", "deploy", "perf")
"""Folders with modules."""
QUICK: Final = ("unit", "fuzz", "images", "conformance")
"""Suites that need only processors; of the others, this command prints the names."""
TWO_MINUTES: Final = 150
"""About so many test files take two minutes on two cores."""
SHARED: Final = ("setup.cfg", "pyproject.toml", "tox.ini", "tests/conftest.py")
"""Files that affect every test."""
ALL_MODULES: Final = "*.py"
"""A module with this text reads all modules, as does one that imports ``pkgutil``."""
_NAMED: Final = re.compile(rf"\b(?:{'|'.join(CODE)})(?:\.\w+)+|^kyverno_mp$")


class Tree:
    """The modules of a tree: what each imports, and what its texts name."""

    def __init__(self, root: Path, changed: Iterable[str] = ()) -> None:
        """Take the changed files, for the deleted ones."""
        paths = (path for folder in CODE for path in (root / folder).rglob("*.py"))
        names = {path.relative_to(root).as_posix() for path in paths}
        gone = {name for name in changed if _is_module(name)}
        self._modules = {_dotted(name): name for name in names | gone}
        """Dotted name -> path, of deleted modules as well: their users fail."""
        self._texts: dict[str, set[str]] = {}
        """Path of a module -> its texts, without docstrings."""
        self._users: defaultdict[str, set[str]] = defaultdict(set)
        """Path of a module -> the modules that import or name it."""
        for name in sorted(names):
            nodes = nodes_of(ast.parse((root / name).read_text()))
            self._texts[name] = set(_texts(nodes))
            if any(_is_walk(node) for node in nodes):
                self._texts[name].add(ALL_MODULES)
            for used in {*self._imported(nodes), *self._named(name), *self._rigs(name)}:
                self._users[used].add(name)

    def reached(self, changed: Iterable[str]) -> dict[str, int]:
        """Return each test file that changed files reach, with its distance."""
        distances = {name: 0 for path in changed for name in self._first(path)}
        border = list(distances)
        while border:
            users = {user for name in border for user in self._users[name]}
            border = sorted(users - distances.keys())
            step = max(distances.values()) + 1
            distances |= dict.fromkeys(border, step)
        return {
            name: far
            for name, far in distances.items()
            if _is_test(name) and name in self._texts
        }

    def _first(self, path: str) -> Iterable[str]:
        """Return the modules that a changed file affects directly."""
        if path in SHARED:
            return self._texts
        if _is_module(path):
            return (path, *self._readers_of_code())
        return self._readers(path) or self._texts

    def _readers_of_code(self) -> Iterator[str]:
        """Yield the modules of tests that read or import all modules."""
        for name, texts in self._texts.items():
            if name.startswith("tests/") and ALL_MODULES in texts:
                yield name

    def _readers(self, path: str) -> list[str]:
        """Return the modules that name a data file or a folder around it."""
        file = PurePosixPath(path)
        words = re.escape(file.name if file.suffix else path)
        name = re.compile(rf"(?<![\w-]){words}(?![\w-])")
        return [
            module
            for module, texts in self._texts.items()
            if texts & _folders(file, module) or any(map(name.search, texts))
        ]

    def _imported(self, nodes: Iterable[ast.AST]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._packages(alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield from self._packages(f"{node.module}.{alias.name}")

    def _packages(self, dotted: str) -> Iterator[str]:
        """Yield a module and the packages around it, which run first."""
        parts = dotted.split(".")
        for end in range(1, len(parts) + 1):
            path = self._modules.get(".".join(parts[:end]))
            if path:
                yield path

    def _named(self, module: str) -> Iterator[str]:
        """Yield the modules that a text names, as ``python -m`` and imports by name."""
        for text in self._texts[module]:
            for dotted in _NAMED.findall(text):
                yield from self._packages(dotted)
                yield from self._packages(f"{dotted}.__main__")

    def _rigs(self, module: str) -> Iterator[str]:
        """Yield each conftest.py that pytest imports for a test file."""
        if _is_test(module):
            for parent in PurePosixPath(module).parents:
                rig = str(parent / "conftest.py")
                if rig in self._modules.values():
                    yield rig


def _is_walk(node: ast.AST) -> bool:
    return isinstance(node, ast.Import) and any(
        alias.name == "pkgutil" for alias in node.names
    )


def _is_module(name: str) -> bool:
    return name.endswith(".py") and name.split("/", 1)[0] in CODE


def _is_test(name: str) -> bool:
    return name.startswith("tests/") and name.rpartition("/")[2].startswith("test_")


def _dotted(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _folders(file: PurePosixPath, module: str) -> set[str]:
    """Return the texts with which a module may name a folder around a file.

    A single word is a folder only as part of a path: texts of paths end with "/".
    """
    home = PurePosixPath(module).parent
    around = [parent for parent in file.parents if parent.parts]
    names = {str(parent) for parent in around}
    names |= {str(p.relative_to(home)) for p in around if p.is_relative_to(home)}
    words = {name for name in names if "/" not in name}
    return {f"{name}/" for name in names - {".", "tests"}} | names - words


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the texts of a module, and the paths that ``/`` joins; no docstrings."""
    seen: set[int] = set()
    """Docstrings, and parts of paths; ``nodes`` has them after what they belong to."""
    for node in nodes:
        if id(node) in seen:
            continue
        if isinstance(node, ast.Expr):
            seen.add(id(node.value))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield f"{_path(node)}/"
            part: ast.expr = node
            while isinstance(part, ast.BinOp):
                seen |= {id(part.left), id(part.right)}
                part = part.left
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _path(node: ast.expr) -> str:
    """Return the end of a path as far as it is known: "b/c" of ``a / "b" / "c"``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return f"{_path(node.left)}/{_path(node.right)}".strip("/")
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def changed_files(base: str) -> set[str]:
    """Return what differs from the commit where this branch left ``base``."""
    start = _git("merge-base", base, "HEAD")[0]
    listed = _git("diff", "--name-only", "--no-renames", start)
    return {*listed, *_git("ls-files", "--others", "--exclude-standard")}


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", "-c", "core.quotePath=false", *arguments],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.splitlines()


def chosen(tests: Mapping[str, int], near: int | None) -> list[str]:
    """Return the tests of the quick suites, the nearest first.

    ``near``: at most as many imports away from the change.
    """
    return sorted(
        (
            name
            for name, far in tests.items()
            if name.split("/")[1] in QUICK and (near is None or far <= near)
        ),
        key=lambda name: (tests[name], name),
    )


def _say(tests: Mapping[str, int], files: Sequence[str]) -> None:
    """Print what runs, and what does not."""
    counts = Counter(name.split("/")[1] for name in tests.keys() - {*files})
    print(f"{len(files)} test files run")
    if len(files) > TWO_MINUTES:
        print("more than two minutes: see --list, and --near to run only the nearest")
    for suite, count in sorted(counts.items()):
        print(f"not run: {count} test files of tests/{suite}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or list the tests that the change can reach."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.changed",
        description="Run the tests that a change can reach.",
        epilog="Further arguments go to pytest.",
    )
    parser.add_argument("--base", default="main", help="the branch to compare with")
    parser.add_argument("--list", action="store_true", help="print the files only")
    parser.add_argument(
        "--near", type=int, metavar="N", help="tests at most N imports away"
    )
    asked, rest = parser.parse_known_args(arguments)
    try:
        changed = sorted(changed_files(asked.base))
    except subprocess.CalledProcessError as error:
        return int(error.returncode)  # git has said why
    tests = Tree(ROOT, changed).reached(changed)
    files = chosen(tests, asked.near)
    if asked.list:
        print(*(f"{tests[name]} {name}" for name in files), sep="\n")
    _say(tests, files)
    if asked.list or not files:
        return 0
    command = [sys.executable, "-m", "pytest", "-n", "auto", *rest, *files]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
