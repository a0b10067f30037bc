"""Measure how easy the program is to read: names, kinds, sizes, circles.

``python -m tests.style [ROOM...]`` prints, for kyverno_mp or some of its rooms: which
part of all names says nothing about its value, how many modules name each kind of
policy, how long modules and functions are, and which modules import one another.

Takes: the source. Gives: figures, for people and for the ratchets in
tests/unit/test_tidy_words.py and test_tidy_kinds.py. May touch: nothing.
"""

import ast
import gc
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from kyverno_mp.values.kubernetes.policy_kinds import POLICY_KINDS, PolicyKind

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "kyverno_mp"
VAGUE: Final = re.compile(
    "_*(?:asked|found|given|gone|had|held|it|kept|known|left|made|of|one|others?|ours"
    "|own|owed|place|said|seen|shown|taken|texts?|theirs|told|wanted|what|where|whole"
    "|why)"
)
"""Names that could be those of any value. A name says what the thing is: ``policy``,
``namespace``, ``report``, ``error``."""
SHORT_LINES: Final = 60
LONG_LINES: Final = 400


def sources(rooms: Iterable[str] = ()) -> dict[str, str]:
    """Return the source of each module by its path from the project's root."""
    chosen = tuple(rooms)
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted(PACKAGE.rglob("*.py"))
        if not chosen or path.relative_to(PACKAGE).parts[0] in chosen
    }


@cache
def syntax_trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of each module of the package.

    They are a million objects without cycles, which the garbage collector would visit
    again and again: it sees none of them.
    """
    gc.disable()
    try:
        return {ROOT / path: parsed(source) for path, source in sources().items()}
    finally:
        gc.freeze()
        gc.enable()


@cache
def parsed(source: str) -> ast.Module:
    """Return the syntax tree of a source, which the tests of a process share."""
    return ast.parse(source)


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes, as ``ast.walk`` does, whose generators cost three times."""
    nodes = [tree]
    for node in nodes:
        for name in node._fields:
            child = getattr(node, name, None)
            if isinstance(child, ast.AST):
                nodes.append(child)
            elif isinstance(child, list):
                nodes += [each for each in child if isinstance(each, ast.AST)]
    return nodes


def names_bound(tree: ast.AST) -> Iterator[str]:
    """Yield each name that the code gives to a value: arguments and targets."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def vague_share(source_of: Mapping[str, str]) -> tuple[float, Counter[str]]:
    """Return the share of vague names in percent, and how often each is bound."""
    bound = Counter(
        name for source in source_of.values() for name in names_bound(parsed(source))
    )
    vague = Counter({name: n for name, n in bound.items() if VAGUE.fullmatch(name)})
    return 100 * vague.total() / max(1, bound.total()), vague


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the strings that are statements, such as docstrings."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def code_of(source: str) -> Iterator[str]:
    """Yield the words of the code, without comments, docstrings and module paths."""
    # The names of modules end within their line, so no docstring moves.
    skipped = {(one.lineno, one.col_offset) for one in docstrings(parsed(source))}
    source = re.sub(r"^from [\w.]+", "from module", source, flags=re.MULTILINE)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and token.start in skipped
        if token.type != tokenize.COMMENT and not is_docstring:
            yield token.string


def pattern_of(row: PolicyKind) -> re.Pattern[str]:
    """Return the pattern of the kind's name as a class, a constant or a function."""
    words = re.findall("[A-Z][a-z]+", row.name.removesuffix("Policy"))
    alone = "" if words[0] == "Image" else "(?<!image)(?<!image_)"
    return re.compile(
        rf"{alone}{'_?'.join(words)}_?polic(?:y|ies)(?![a-z])", re.IGNORECASE
    )


def modules_by_kind(source_of: Mapping[str, str]) -> dict[str, int]:
    """Return how many modules name each kind in their code."""
    patterns = {row.name: pattern_of(row) for row in POLICY_KINDS}
    # Splitting into tokens is slow, and most modules have no such name anywhere.
    words = [
        " ".join(code_of(source))
        for source in source_of.values()
        if any(pattern.search(source) for pattern in patterns.values())
    ]
    return {
        name: sum(1 for text in words if pattern.search(text))
        for name, pattern in patterns.items()
    }


def function_lengths(source_of: Mapping[str, str]) -> list[tuple[int, str]]:
    """Return the lines of each function without its docstring, and its place."""
    lengths = []
    for path, source in source_of.items():
        for node in nodes_of(parsed(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1:2] if ast.get_docstring(node) else node.body[:1]
                end = node.end_lineno or node.lineno
                lines = end - first[0].lineno + 1 if first else 0
                lengths.append((lines, f"{path}:{node.lineno} {node.name}"))
    return sorted(lengths)


def circles(source_of: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of modules that import one another, also indirectly."""
    module_of = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in source_of
    }
    imported = {
        module: {
            name
            for node in parsed(source_of[path]).body
            if isinstance(node, ast.ImportFrom) and node.module
            for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names))
            if name in module_of and name != module
        }
        for module, path in module_of.items()
    }
    reached = {module: _reached(module, imported) for module in imported}
    groups = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imported
        if module in reached[module]
    }
    return sorted(map(sorted, groups))


def _reached(start: str, imported: Mapping[str, set[str]]) -> set[str]:
    """Return all modules that importing ``start`` imports."""
    seen: set[str] = set()
    waiting = list(imported[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += imported[module]
    return seen


def main(rooms: list[str]) -> int:
    """Print the figures."""
    source_of = sources(rooms)
    lines = {path: source.count("\n") for path, source in source_of.items()}
    share, vague = vague_share(source_of)
    most = ", ".join(f"{name} {count}" for name, count in vague.most_common(10))
    print(f"names that say nothing: {share:.1f} % ({most})")
    for name, count in modules_by_kind(source_of).items():
        print(f"modules that name {name}: {count}")
    short = sum(1 for count in lines.values() if 0 < count < SHORT_LINES)
    long = sum(1 for count in lines.values() if count > LONG_LINES)
    names = Counter(Path(path).name for path in lines if "__init__" not in path)
    shared = sum(count for count in names.values() if count > 1)
    print(
        f"modules: {len(lines):,} with {sum(lines.values()):,} lines, median"
        f" {median(lines.values()):.0f}; {short} below {SHORT_LINES}, {long} above"
        f" {LONG_LINES}; {shared} share a file name"
    )
    lengths = function_lengths(source_of)
    p99 = quantiles([length for length, _ in lengths], n=100)[98]
    longest = "; ".join(f"{length} {place}" for length, place in lengths[-3:])
    print(f"functions: {len(lengths):,}, p99 {p99:.0f} lines; longest: {longest}")
    print(f"circles: {len(circles(source_of))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
