"""Draw a sample of small changes to the code, by a seed.

Takes: the source of the rooms, a seed. Gives: Mutants. Next: run.
May touch: nothing; it only reads the source.

mutmut makes the changes. Changes that affect no verdict, i.e. to messages and to the
arguments of an error, are not drawn. mutmut itself skips comments, docstrings and
annotations; setup.cfg names further lines to skip, the charges.
"""

import ast
import difflib
import random
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mutmut.mutation.file_mutation import MutatedFile

_MARKED: Final = re.compile(r"XX\w+XX")
"""mutmut's change of a word; its other changes to text only change the case."""


@dataclass(frozen=True)
class Mutant:
    """One change to one function; ``name`` is mutmut's, and differs between versions.

    ``before`` and ``after`` are the changed lines, without their indentation.
    """

    name: str
    file: str
    function: str
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identifier that stays stable while other parts of the file change."""
        return self.file, self.function, self.before, self.after


def draw(root: Path, sources: list[str], seed: str, count: int) -> list[Mutant]:
    """Draw mutants of the given files, in proportion to the files' lengths."""
    chance = random.Random(seed)
    found = [mutant for file in sources for mutant in mutants_of(root, file)]
    return chance.sample(found, min(count, len(found)))


def draw_files(root: Path, globs: list[str], seed: str, most: int) -> list[str]:
    """Draw files, preferring long ones: changing all files takes minutes."""
    chance = random.Random(seed)
    left = {
        str(path.relative_to(root)): path.stat().st_size
        for glob in globs
        for path in sorted(root.glob(glob))
        if path.name != "__init__.py"
    }
    drawn: list[str] = []
    while left and len(drawn) < most:
        (file,) = chance.choices(list(left), list(left.values()))
        drawn.append(file)
        del left[file]
    return sorted(drawn)


def mutants_of(root: Path, file: str) -> Iterator[Mutant]:
    """Yield all mutants of a file that a test could distinguish from the original.

    mutmut is imported late: a second, in each worker that collects a test of this.
    """
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import (
        get_mutant_name,
        mangled_name_from_mutant_name,
        orig_function_and_class_names_from_key,
    )

    mutated = mutate_file_contents(file, (root / file).read_text())
    lines = mutated.code.splitlines()
    for short in mutated.mutant_names:
        name = get_mutant_name(Path(file), short)
        original = f"{mangled_name_from_mutant_name(short)}__mutmut_orig"
        before, after = (
            _function(lines, mutated, each, short) for each in (original, short)
        )
        if not _matters(before, after):
            continue
        function, owner = orig_function_and_class_names_from_key(name)
        yield Mutant(
            name,
            file,
            f"{owner}.{function}" if owner else function,
            *_changed_lines(before, after),
        )


def _function(lines: list[str], mutated: "MutatedFile", name: str, as_name: str) -> str:
    span = mutated.line_span_by_function_name[name]
    text = textwrap.dedent("\n".join(lines[span.start - 1 : span.end]))
    return text.replace(name, as_name)


def _changed_lines(before: str, after: str) -> tuple[str, str]:
    """Return the lines that differ, before and after."""
    found = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    sides = [
        " ".join(line[2:].strip() for line in found if line.startswith(sign))
        for sign in "-+"
    ]
    return sides[0], sides[1]


def _matters(before: str, after: str) -> bool:
    """Return whether more than a message or an error's arguments changed."""
    old, new = _without_error_words(before), _without_error_words(after)
    if _shape(before) != _shape(after):
        return True
    # Only the text differs: a comparison may need the word, so one change is drawn.
    texts = _texts(new) - _texts(old)
    return any(_MARKED.fullmatch(text) for text in texts)


def _without_error_words(source: str) -> ast.Module:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.args, node.exc.keywords = [], []
    return tree


def _shape(source: str) -> str:
    """Return everything except the texts."""
    tree = _without_error_words(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def _texts(tree: ast.Module) -> set[str]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
