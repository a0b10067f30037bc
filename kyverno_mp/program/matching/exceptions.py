"""Find the exceptions that a request may match, before they are linked.

Room: program.matching. Takes: match blocks of exceptions. Gives: ExceptionIndex. Next:
program/rule_gate.py links those that it finds.
Source: docs/behaviour/engine 1, 8.7.

Linking an exception takes up to milliseconds, and a rule may have thousands, most of
them for one namespace or for a few names.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kyverno_mp.ir.match import FilterIR, MatchIR
from kyverno_mp.program.matching.subject import criterion_namespace, resource_name
from kyverno_mp.program.request import Request
from kyverno_mp.values.wildcard import contains_wildcard

_NAMESPACE: Final = 0
_NAME: Final = 1
_Key = tuple[int, str]


class ExceptionIndex:
    """Positions of exceptions by an exact namespace or name of their match blocks."""

    __slots__ = ("_always", "_by_key")

    def __init__(self, blocks: Iterable[MatchIR]) -> None:
        """Cost: about a microsecond for each exception."""
        self._always: list[int] = []
        self._by_key: dict[_Key, list[int]] = {}
        for position, block in enumerate(blocks):
            keys = _keys(block)
            if keys is None:
                self._always.append(position)
                continue
            for key in dict.fromkeys(keys):
                self._by_key.setdefault(key, []).append(position)

    def positions(self, request: Request) -> Sequence[int]:
        """Return, in order, the positions of all that may match, and of few others."""
        resource = request.object or request.old_object
        if not (resource and self._by_key):
            return self._always
        of_namespace = (_NAMESPACE, criterion_namespace(request, resource))
        of_name = (_NAME, resource_name(resource))
        indexed = {
            *self._by_key.get(of_namespace, ()),
            *self._by_key.get(of_name, ()),
        }
        return sorted({*self._always, *indexed}) if indexed else self._always


def _keys(block: MatchIR) -> list[_Key] | None:
    """Return keys of which a matching request has one; None if any may match."""
    by_filter = [_keys_of_filter(resource_filter) for resource_filter in block.filters]
    if block.mode == "all":
        return next((keys for keys in by_filter if keys is not None), None)
    all_keys: list[_Key] = []
    for keys in by_filter:
        if keys is None:
            return None
        all_keys += keys
    return all_keys


def _keys_of_filter(record: FilterIR) -> list[_Key] | None:
    names = (record.name,) if record.name else record.names
    for dimension, patterns in ((_NAMESPACE, record.namespaces), (_NAME, names)):
        if patterns and not any(map(contains_wildcard, patterns)):
            return [(dimension, value) for value in patterns]
    return None
