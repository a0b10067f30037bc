"""Choose the overload of a function by the classes of the arguments.

Room: expr. Takes: overloads of a Library, closures of the arguments. Gives: a closure.
Next: expr/cel/linking/expressions.py. May touch: a cache per call site, bounded by the
number of value classes.
Source: the CEL language definition, overload resolution.
"""

from collections.abc import Sequence
from typing import Any, Final

from kyverno_mp.expr.cel.functions.authorization import (
    AccessCheck,
    AccessDecision,
    Authorizer,
)
from kyverno_mp.expr.cel.functions.formats import Format
from kyverno_mp.expr.cel.functions.kyverno.documents import JsonTexts, YamlTexts
from kyverno_mp.expr.cel.functions.kyverno.image_verification import VerifierContext
from kyverno_mp.expr.cel.functions.kyverno.images import ImageReference
from kyverno_mp.expr.cel.functions.network import Cidr, Ip
from kyverno_mp.expr.cel.functions.versions import Semver
from kyverno_mp.expr.cel.library import Implementation, Overload
from kyverno_mp.expr.cel.linking.frame import Frame, Run
from kyverno_mp.expr.cel.outside import (
    GeneratorContext,
    GlobalContext,
    Gvr,
    HttpContext,
    ImageContext,
    ResourceContext,
)
from kyverno_mp.expr.cel.refusals import no_overload
from kyverno_mp.expr.cel.types import DYN, Type
from kyverno_mp.expr.cel.values import (
    Duration,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    Value,
)
from kyverno_mp.values.go.gourl import Url
from kyverno_mp.values.kubernetes.quantity import Quantity

_CLASSES: Final[dict[str, type]] = {
    "null_type": type(None),
    "bool": bool,
    "int": int,
    "uint": Uint,
    "double": float,
    "string": str,
    "bytes": bytes,
    "list": list,
    "map": dict,
    "timestamp": Timestamp,
    "duration": Duration,
    "optional_type": Optional,
    "type": TypeValue,
    "net.IP": Ip,
    "net.CIDR": Cidr,
    "kubernetes.URL": Url,
    "kubernetes.Quantity": Quantity,
    "kubernetes.Semver": Semver,
    "kubernetes.NamedFormat": Format,
    "generator.Context": GeneratorContext,
    "globalcontext.Context": GlobalContext,
    "schema.GroupVersionResource": Gvr,
    "http.Context": HttpContext,
    "kyverno.image": ImageReference,
    "imagedata.Context": ImageContext,
    "imageverify.Context": VerifierContext,
    "json.Json": JsonTexts,
    "resource.Context": ResourceContext,
    "yaml.Yaml": YamlTexts,
    "kubernetes.authorization.Authorizer": Authorizer,
    "kubernetes.authorization.PathCheck": AccessCheck,
    "kubernetes.authorization.GroupCheck": AccessCheck,
    "kubernetes.authorization.ResourceCheck": AccessCheck,
    "kubernetes.authorization.Decision": AccessDecision,
}


_SHALLOW: Final = frozenset({"flatten", "sort"})
"""KYVERNO: in cel-go, these functions accept a list with entries of any type."""


def link_dispatch(
    name: str, overloads: Sequence[Overload], args: tuple[Run, ...]
) -> Run:
    """Return a closure that calls the overload that matches the arguments."""
    fitting = [
        (overload.args, overload.implementation)
        for overload in overloads
        if len(overload.args) == len(args) and overload.implementation is not None
    ]
    if not args:
        assert fitting, name
        call: Any = fitting[0][1]
        return lambda s: call(s[0])
    chooser = _Chooser(name, fitting)
    if len(args) == 1:
        return _unary(chooser, args[0])
    if len(args) == 2:  # noqa: PLR2004 - two arguments
        return _binary(chooser, *args)

    def run(s: Frame) -> Value:
        values = [arg(s) for arg in args]
        return chooser.choose(tuple(values))(s[0], *values)

    return run


def _fits(declared: Type, value: Value) -> bool:
    """Return whether an overload accepts the value.

    KYVERNO: cel-go checks only the first entry of a list or a map.
    """
    value_class = _CLASSES.get(declared.name)
    if declared.kind == "param" or value_class is None:
        return True
    if value.__class__ is not value_class:
        return False
    container: Any = value
    if value_class is list and container:
        return _fits(declared.params[0], container[0])
    if value_class is dict and container:
        key, entry = next(iter(container.items()))
        return _fits(declared.params[0], key) and _fits(declared.params[1], entry)
    return True


def _is_deep(declared: Type) -> bool:
    """Return whether the choice depends on more than the class of the value."""
    inner = declared.params if declared.name in ("list", "map") else ()
    return any(_is_deep(part) or _CLASSES.get(part.name) is not None for part in inner)


def _shallow(declared: Type) -> Type:
    return declared._replace(params=(DYN,)) if declared.name == "list" else declared


class _Chooser:
    __slots__ = ("_fitting", "_is_deep", "_name", "memo")

    def __init__(
        self,
        name: str,
        fitting: list[tuple[tuple[Type, ...], Implementation]],
    ) -> None:
        self._name = name
        self._fitting = fitting
        if name in _SHALLOW:
            fitting = [
                (tuple(map(_shallow, parameters)), run) for parameters, run in fitting
            ]
            self._fitting = fitting
        self._is_deep = any(
            _is_deep(parameter) for parameters, _ in fitting for parameter in parameters
        )
        self.memo: dict[Any, Implementation] = {}

    def choose(self, values: tuple[Value, ...]) -> Implementation:
        for types, implementation in self._fitting:
            if all(map(_fits, types, values)):
                return implementation
        raise no_overload(self._name, *values)

    def remember(self, key: Any, implementation: Implementation) -> None:
        """Cache the choice for values of these classes."""
        if not self._is_deep:
            self.memo[key] = implementation


def _unary(chooser: _Chooser, arg: Run) -> Run:
    memo = chooser.memo

    def run(s: Frame) -> Value:
        value = arg(s)
        implementation = memo.get(value.__class__)
        if implementation is None:
            implementation = chooser.choose((value,))
            chooser.remember(value.__class__, implementation)
        return implementation(s[0], value)

    return run


def _binary(chooser: _Chooser, left: Run, right: Run) -> Run:
    memo = chooser.memo

    def run(s: Frame) -> Value:
        a = left(s)
        b = right(s)
        key = (a.__class__, b.__class__)
        implementation = memo.get(key)
        if implementation is None:
            implementation = chooser.choose((a, b))
            chooser.remember(key, implementation)
        return implementation(s[0], a, b)

    return run
