"""Provide linked queries by their text, with a bounded cache.

Room: expr. Takes: expression text. Gives: Query. Next: template, program/context.
May touch: a bounded cache.
Source: docs/behaviour/engine 9.1.
"""

from functools import lru_cache
from typing import Final

from kyverno_mp.expr.jmespath.link import Query, link, link_raw
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.limits import PARSE_CACHE_ENTRIES_MAX

_REMEMBERED_TEXT_MAX: Final = 2048
"""Longer strings are parsed each time, so that the cache does not exceed a few tens of
MiB."""


def search(source: str) -> Query:
    """Return the query of Kyverno's dialect for ``source``.

    Raises: ExpressionInvalid; invalid strings are not cached.
    """
    if len(source) > _REMEMBERED_TEXT_MAX:
        return link(parse(source))
    return _remembered(source)


def search_raw(source: str) -> Query:
    """Return the query that keeps ints (see ``link_raw``); it is not cached.

    Raises: ExpressionInvalid.
    """
    return link_raw(parse(source))


@lru_cache(maxsize=PARSE_CACHE_ENTRIES_MAX)
def _remembered(source: str) -> Query:
    return link(parse(source))
