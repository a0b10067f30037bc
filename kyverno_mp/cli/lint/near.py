"""Find the name that somebody meant.

Room: cli. Takes: a name, the names that exist. Gives: the nearest one, and messages
with it. Next: kinds.py, command.py.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

from kyverno_mp.policy.problems import Problem

_T = TypeVar("_T")
_ONE_LETTER: Final = 5
_TWO_LETTERS: Final = 9
"""A name of this length may have one, or two, wrong letters."""
_NAME_MAX: Final = 64
"""Longer names are no fields, and comparing costs their square."""


def message_of(problem: Problem) -> str:
    """Return what is wrong, with the field that the author may have meant."""
    message = problem.reason
    name = problem.path.rpartition(".")[2]
    if problem.known and len(name) <= _NAME_MAX:
        meant = nearest(name, ((field, field) for field in problem.known), 1)
        message += f"; did you mean {meant}?" if meant else ""
    return f"column {problem.column}: {message}" if problem.column else message


def nearest(
    name: str, spellings: Iterable[tuple[str, _T]], allowed: int = 0
) -> _T | None:
    """Return what has the same name but for case, number or a few letters.

    ``allowed``: wrong letters that a short name may have, too.
    """
    low = name.lower()
    letters = (len(name) >= _ONE_LETTER) + (len(name) >= _TWO_LETTERS)
    allowed = max(allowed, letters)
    best: _T | None = None
    fewest = allowed + 1
    for spelling, candidate in spellings:
        folded = spelling.lower()
        if low in (folded, f"{folded}s", f"{folded}es"):
            return candidate
        if abs(len(folded) - len(low)) <= allowed:
            count = _changes(low, folded)
            if count < fewest:
                best, fewest = candidate, count
    return best


def _changes(word: str, spelling: str) -> int:
    """Return how many letters differ; two exchanged neighbours count once."""
    before: list[int] = []
    row = list(range(len(spelling) + 1))
    for i, letter in enumerate(word, 1):
        before, last, row = row, before, [i]
        for j, expected in enumerate(spelling, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != expected))
            if i > 1 < j and letter == spelling[j - 2] and word[i - 2] == expected:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]
