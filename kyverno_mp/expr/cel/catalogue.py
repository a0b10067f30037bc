"""List the functions of the API server's CEL environment, and Kyverno's own functions.

Room: expr. Takes: OVERLOADS of functions/. Gives: declarations(), extensions(),
base_library(), oldest_library(), kyverno_library(). Next: check.py,
expr/cel/linking/expressions.py, compiler/rules/effects.py.
Source: docs/behaviour/cel 11 (Kubernetes 1.35, stored expressions).
"""

from collections.abc import Collection, Iterator
from functools import cache
from itertools import chain, permutations
from typing import Final

from kyverno_mp.expr.cel.functions import (
    authorization,
    encoders,
    formats,
    lists,
    mathematics,
    network,
    optionals,
    quantities,
    regexes,
    sets,
    standard,
    strings,
    times,
    urls,
    versions,
)
from kyverno_mp.expr.cel.functions.kyverno import (
    archives,
    captures,
    certificates,
    documents,
    generators,
    hashes,
    identities,
    image_verification,
    images,
    moments,
    resources,
    services,
    transforms,
)
from kyverno_mp.expr.cel.library import Declaration, Library, function
from kyverno_mp.values.kubernetes.policy_kinds import FUNCTIONS, ROW_OF

_ORDERED = ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration")
_NUMBERS = ("int", "uint", "double")
_COMPARISONS = ("<", "<=", ">", ">=")
_PARTS: Final = {
    "certificates": certificates.OVERLOADS,
    "users": identities.OVERLOADS,
    "generators": generators.OVERLOADS,
    "verification": image_verification.OVERLOADS,
    "patches": (encoders.ESCAPE_KEY,),
}
"""The functions that only some kinds have."""
_LATER: Final = frozenset(
    {"format", "strings.quote", "slice", "flatten", "distinct", "reverse"}
    | {"lists.range", "sort"}
)
"""Functions of these modules that were added after Kubernetes 1.27."""


def declarations() -> Iterator[Declaration]:
    """Yield all declarations; functions implemented in linking/ have no callable."""
    yield from _built_in()
    yield from _built_in_later()
    for module in (
        standard,
        times,
        strings,
        lists,
        sets,
        regexes,
        optionals,
        urls,
        network,
        quantities,
        versions,
        formats,
        authorization,
    ):
        yield from module.OVERLOADS


def extensions(
    parts: Collection[str] = _PARTS.keys(), *, namespaced: bool = False
) -> Iterator[Declaration]:
    """Yield the functions of policies.kyverno.io that the API server does not have."""
    for module in (
        mathematics,
        encoders,
        images,
        hashes,
        documents,
        moments,
        transforms,
        archives,
        services,
        captures,
    ):
        yield from module.OVERLOADS
    for name, overloads in _PARTS.items():
        if name in parts:
            yield from overloads
    yield from resources.NAMESPACED if namespaced else resources.CLUSTER


@cache
def base_library() -> Library:
    """Return the library of the API server's stored expressions (Kubernetes 1.35).

    Its 300 signatures are parsed once, on first use, which takes about 5 ms.
    """
    return Library(declarations())


@cache
def oldest_library() -> Library:
    """Return the library that every supported API server has.

    The oldest supported version is 1.28. An API server checks new expressions with the
    library of the version before its own.
    """
    modules = (standard, times, strings, lists, regexes, urls)
    declarations = chain(_built_in(), *(module.OVERLOADS for module in modules))
    return Library(
        declaration for declaration in declarations if declaration.name not in _LATER
    )


def kyverno_library(*, namespaced: bool = False, kind: str = "") -> Library:
    """Return the base library with the functions of policies.kyverno.io.

    ``namespaced``: those for namespaced policies, in which ``resource`` has no
    parameter ``namespace``. ``kind``: those of this kind; "": those of most kinds.
    """
    parts = ROW_OF[kind].functions if kind else FUNCTIONS
    return _with_parts(parts, namespaced=namespaced)


@cache
def _with_parts(parts: frozenset[str], *, namespaced: bool) -> Library:
    return base_library().extended(extensions(parts, namespaced=namespaced))


def _built_in() -> Iterator[Declaration]:
    yield function("==(A, A) -> bool")
    yield function("!=(A, A) -> bool")
    yield function("in(A, list(A)) -> bool")
    yield function("in(A, map(A, B)) -> bool")
    yield function("!_(bool) -> bool")
    yield function("?:(bool, T, T) -> T")
    yield function("_[_](list(A), int) -> A")
    yield function("_[_](map(A, B), A) -> B")
    for sign in _COMPARISONS:
        for kind in _ORDERED:
            yield function(f"{sign}({kind}, {kind}) -> bool")


def _built_in_later() -> Iterator[Declaration]:
    """Yield the operators added in Kubernetes 1.28: optionals, mixed number types."""
    yield function("_[_](optional_type(list(V)), int) -> optional_type(V)")
    yield function("_[_](optional_type(map(K, V)), K) -> optional_type(V)")
    yield function("_[?_](list(V), int) -> optional_type(V)")
    yield function("_[?_](map(K, V), K) -> optional_type(V)")
    yield function("_[?_](optional_type(list(V)), int) -> optional_type(V)")
    yield function("_[?_](optional_type(map(K, V)), K) -> optional_type(V)")
    for sign in _COMPARISONS:
        for left, right in permutations(_NUMBERS, 2):
            yield function(f"{sign}({left}, {right}) -> bool")
