"""Define the static types of CEL and their assignability.

Room: expr. Takes: signatures such as ``indexOf(string, string) -> int``. Gives: Type,
parse_signature, Substitution. Next: check.py, library.py.
Source: cel-go checker/types.go; docs/behaviour/cel 12c (null).
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.limits import CEL_TYPE_PARTS_MAX, CEL_TYPE_STEPS_MAX


class Type(NamedTuple):
    """A type: its name and parameters.

    ``kind``: param (a type variable), object (a record), opaque (a library's value), or
    simple (the others, including list and map).
    """

    name: str
    params: "tuple[Type, ...]" = ()
    kind: str = "simple"

    def __str__(self) -> str:
        if self.name == "null_type":
            return "null"
        if self.params:
            return f"{self.name}({', '.join(map(str, self.params))})"
        return self.name


DYN: Final = Type("dyn")
ERROR: Final = Type("!error!")
BOOL: Final = Type("bool")
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
BYTES: Final = Type("bytes")
NULL: Final = Type("null_type")
TIMESTAMP: Final = Type("timestamp")
DURATION: Final = Type("duration")
ANY: Final = Type("any")
_OPAQUE: Final = {
    "IP": "net.IP",
    "CIDR": "net.CIDR",
    "URL": "kubernetes.URL",
    "Quantity": "kubernetes.Quantity",
    "Semver": "kubernetes.Semver",
    "Format": "kubernetes.NamedFormat",
    "GeneratorContext": "generator.Context",
    "GlobalContext": "globalcontext.Context",
    "Gvr": "schema.GroupVersionResource",
    "HttpContext": "http.Context",
    "Image": "kyverno.image",
    "ImageContext": "imagedata.Context",
    "VerifierContext": "imageverify.Context",
    "Json": "json.Json",
    "KeySet": "jwk.Set",
    "KeySets": "jwk.Sets",
    "ResourceContext": "resource.Context",
    "Yaml": "yaml.Yaml",
}
_OBJECTS: Final = frozenset(
    {"Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision"}
)
_NULLABLE: Final = frozenset({"any", "timestamp", "duration"})
_WORD: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*|[(),])")
_CONTAINERS: Final = frozenset({"list", "map", "optional_type", "type"})


def list_of(item: Type) -> Type:
    """Return ``list(item)``."""
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    """Return ``map(key, value)``."""
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    """Return ``optional_type(value)``."""
    return Type("optional_type", (value,), "opaque")


def type_of(value: Type) -> Type:
    """Return ``type(value)``, the type of a type."""
    return Type("type", (value,))


def object_type(name: str) -> Type:
    """Return a record type; its fields are in the environment."""
    return Type(name, (), "object")


def opaque_type(name: str) -> Type:
    """Return a type whose values only library functions can read."""
    return Type(name, (), "opaque")


def parse_type(notation: str) -> Type:
    """Parse a type of a signature; one capital letter is a type variable."""
    parsed, end = _read(notation, 0)
    assert not notation[end:].strip(), notation
    return parsed


def parse_signature(signature: str) -> tuple[str, tuple[Type, ...], Type]:
    """Parse ``name(type, type) -> type``; the receiver of a member comes first."""
    head, _, result = signature.rpartition("->")
    opening = head.index("(")
    args, at = [], opening + 1
    while head[at:].strip() != ")":
        parameter, at = _read(head, at)
        args.append(parameter)
        rest = _WORD.match(head, at)
        if rest is not None and rest[1] == ",":
            at = rest.end()
    return head[:opening].strip(), tuple(args), parse_type(result)


def _read(notation: str, at: int) -> tuple[Type, int]:
    word = _WORD.match(notation, at)
    assert word is not None, notation
    name, end = word[1], word.end()
    params: list[Type] = []
    if name in _CONTAINERS:
        following = _WORD.match(notation, end)
        if following is not None and following[1] == "(":
            end = following.end()
            while True:
                parameter, end = _read(notation, end)
                params.append(parameter)
                closing = _WORD.match(notation, end)
                assert closing is not None, notation
                end = closing.end()
                if closing[1] == ")":
                    break
    if name in _OPAQUE:
        return Type(_OPAQUE[name], (), "opaque"), end
    if name in _OBJECTS:
        return object_type(f"kubernetes.authorization.{name}"), end
    if name == "ServiceAccount":
        return object_type("user.ServiceAccount"), end
    if len(name) == 1:
        return Type(name, (), "param"), end
    if "." in name:
        return object_type(name), end
    kind = "opaque" if name == "optional_type" else "simple"
    return Type(name, tuple(params), kind), end


@dataclass(slots=True)
class Allowance:
    """The remaining steps for comparing types; each visited part takes one step."""

    left: int = CEL_TYPE_STEPS_MAX

    def spend(self) -> None:
        """Take one step. Raises: BudgetExceeded if no steps are left."""
        self.left -= 1
        if self.left < 0:
            raise BudgetExceeded("cel.type_steps", "too many types to compare")


def sized(cel_type: Type) -> Type:
    """Return the type after checking its number of parts.

    Nested maps can double the number of parts at each level. Raises: BudgetExceeded.
    """
    waiting, count = [cel_type], 0
    while waiting:
        count += 1
        if count > CEL_TYPE_PARTS_MAX:
            raise BudgetExceeded("cel.type_size", "the type has too many parts")
        waiting.extend(waiting.pop().params)
    return cel_type


class Substitution:
    """The current bindings of type variables."""

    __slots__ = ("_allowance", "_found", "_undo")

    def __init__(self, allowance: Allowance | None = None) -> None:
        self._found: dict[Type, Type] = {}
        self._undo: list[tuple[Type, Type | None]] = []
        """Variables bound during ``fits``, with their previous bindings."""
        self._allowance = allowance or Allowance()

    def fits(self, actual: tuple[Type, ...], declared: tuple[Type, ...]) -> bool:
        """Return whether ``actual`` can be assigned to ``declared``; bind variables."""
        self._undo.clear()
        if len(actual) == len(declared) and all(
            self._assignable(a, b) for a, b in zip(actual, declared, strict=True)
        ):
            return True
        for variable, before in reversed(self._undo):
            if before is None:
                del self._found[variable]
            else:
                self._found[variable] = before
        return False

    def joined(self, first: Type, second: Type) -> Type:
        """Return the common type of two list elements; dyn if they differ."""
        if not self.fits((first,), (second,)):
            return DYN
        return first if _less_specific(first, second) else second

    def apply(self, cel_type: Type, *, final: bool = False) -> Type:
        """Replace variables with their bindings; ``final``: unbound ones with dyn."""
        self._allowance.spend()
        binding = self._found.get(cel_type) if cel_type.kind == "param" else None
        if binding is not None:
            return self.apply(binding, final=final)
        if cel_type.kind == "param":
            return DYN if final else cel_type
        if not cel_type.params:
            return cel_type
        params = tuple(self.apply(p, final=final) for p in cel_type.params)
        return Type(cel_type.name, params, cel_type.kind)

    def _learn(self, variable: Type, binding: Type) -> None:
        self._undo.append((variable, self._found.get(variable)))
        self._found[variable] = binding

    def _assignable(self, first: Type, second: Type) -> bool:
        self._allowance.spend()
        if second.kind == "param":
            valid, is_known = self._substitutes(first, second)
            if valid or is_known:
                return valid
        if first.kind == "param":
            return self._substitutes(second, first)[0]
        if _is_dyn(first) or _is_dyn(second):
            return True
        if NULL in (first, second):
            operand = second if first == NULL else first
            return (
                operand == NULL
                or operand.kind in ("opaque", "object")
                or operand.name in _NULLABLE
            )
        if first.name != second.name:
            return False
        if first.name == "type":
            return True
        return len(first.params) == len(second.params) and all(
            self._assignable(a, b)
            for a, b in zip(first.params, second.params, strict=True)
        )

    def _substitutes(self, candidate: Type, variable: Type) -> tuple[bool, bool]:
        """Return whether a type can replace a variable, and whether this is final."""
        if candidate == variable:
            return True, True
        binding = self._found.get(variable)
        if binding is not None:
            if candidate == binding:
                return True, True
            if not self._assignable(candidate, binding):
                return False, True
            general = candidate if _less_specific(candidate, binding) else binding
            if not self._occurs(variable, general):
                self._learn(variable, general)
            return True, True
        if self._occurs(variable, candidate):
            return False, False
        self._learn(variable, candidate)
        return True, False

    def _occurs(self, variable: Type, within: Type) -> bool:
        self._allowance.spend()
        if variable == within:
            return True
        if within.kind == "param":
            binding = self._found.get(within)
            return binding is not None and self._occurs(variable, binding)
        return any(self._occurs(variable, param) for param in within.params)


def _is_dyn(cel_type: Type) -> bool:
    return cel_type in (DYN, ERROR, ANY)


def _less_specific(first: Type, second: Type) -> bool:
    if first in (DYN, ANY) or first.kind == "param":
        return True
    if second in (DYN, ANY) or second.kind == "param":
        return False
    if first.name != second.name or len(first.params) != len(second.params):
        return False
    return all(
        _less_specific(a, b) for a, b in zip(first.params, second.params, strict=True)
    )
