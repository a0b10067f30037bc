"""Find the external effects of a compiled rule.

Room: compiler. Takes: any record of the IR. Gives: effects_of. Next: compiler/build.py
stores it in the rule.
Source: docs/architecture.md 3 (effects decide scheduling).

The effects of context entries and parameters follow from the type of their record, the
effects of calls from the function's declaration; nothing is guessed from the text of a
policy. An expression that is known only at run time (a query built from variables)
cannot be detected here: Runtime.before_waiting moves it off the event loop.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import msgspec

from kyverno_mp.expr.cel.nodes import Call
from kyverno_mp.expr.effects import (
    EFFECT_CLUSTER,
    EFFECT_PURE,
    EFFECT_REGISTRY,
    EFFECT_SHARED,
)
from kyverno_mp.expr.jmespath.nodes import Function
from kyverno_mp.ir.cel import CelParamsIR
from kyverno_mp.ir.rules import (
    ApiCallEntryIR,
    ConfigMapEntryIR,
    GlobalReferenceEntryIR,
    ImageRegistryEntryIR,
    ManifestsIR,
    VerifyImagesIR,
)
from kyverno_mp.values.records import RecordSearch

_BY_RECORD: Final[Mapping[type[msgspec.Struct], int]] = {
    # A ConfigMap without the cache label is fetched from the API server.
    ConfigMapEntryIR: EFFECT_SHARED | EFFECT_CLUSTER,
    GlobalReferenceEntryIR: EFFECT_SHARED,
    ApiCallEntryIR: EFFECT_CLUSTER,
    ImageRegistryEntryIR: EFFECT_REGISTRY,
    VerifyImagesIR: EFFECT_REGISTRY,
    # Signatures take milliseconds, so they are checked off the event loop, too.
    ManifestsIR: EFFECT_REGISTRY,
    CelParamsIR: EFFECT_CLUSTER,
}
_WITH_EFFECTS: Final = RecordSearch(*_BY_RECORD, Function, Call)


@cache
def _by_function() -> Mapping[str, int]:
    """PERF: loads the functions only for expressions that call one."""
    from kyverno_mp.expr.jmespath.functions.calls import KYVERNO

    return {entry.name: entry.effects for entry in KYVERNO.values()}


@cache
def _by_cel_function() -> Mapping[str, int]:
    """PERF: loads the library only for policies with CEL, so the CLI starts fast."""
    from kyverno_mp.expr.cel.catalogue import declarations, extensions

    effects: dict[str, int] = {}
    for declared in (*declarations(), *extensions()):
        if declared.effects:
            # Variables of several types have a function ``get``.
            effects[declared.name] = effects.get(declared.name, 0) | declared.effects
    return effects


def effects_of(record: Any, more: Mapping[str, int] = MappingProxyType({})) -> int:
    """Return the effects of a record and all nested records, in linear time.

    Shape: ``effects_of(rule)`` -> ``EFFECT_SHARED | EFFECT_CLUSTER``. ``more``: the
    effects of functions in CEL that only one kind of policies has.
    """
    effects = EFFECT_PURE
    for value in _WITH_EFFECTS.all_in(record):
        kind = type(value)
        if kind is Function:
            effects |= _by_function().get(value.name or "", EFFECT_PURE)
        elif kind is Call:
            effects |= _by_cel_function().get(value.function, EFFECT_PURE)
            effects |= more.get(value.function, EFFECT_PURE)
        elif kind in _BY_RECORD:
            effects |= _BY_RECORD[kind]
    return effects
