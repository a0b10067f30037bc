"""Give linked queries by their text, remembered within bounds.

Room: expr. Takes: expression text. Gives: Query. Next: template, program/context.
May touch: a bounded memo.
Source: spec/engine.md 9.1.
"""

from functools import lru_cache
from typing import Final

from kyverno_mp.expr.jmespath.link import Query, link, link_raw
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.limits import PARSE_CACHE_ENTRIES_MAX

_REMEMBERED_TEXT_MAX: Final = 2048
"""Longer texts are parsed each time, so that the memo stays below some tens of MiB."""


def search(text: str) -> Query:
    """Give the query of Kyverno's dialect for ``text``.

    Raises: ExpressionInvalid; bad texts are not remembered.
    """
    if len(text) > _REMEMBERED_TEXT_MAX:
        return link(parse(text))
    return _remembered(text)


def search_raw(text: str) -> Query:
    """Give the query that leaves ints as they are (see ``link_raw``); not remembered.

    Raises: ExpressionInvalid.
    """
    return link_raw(parse(text))


@lru_cache(maxsize=PARSE_CACHE_ENTRIES_MAX)
def _remembered(text: str) -> Query:
    return link(parse(text))
