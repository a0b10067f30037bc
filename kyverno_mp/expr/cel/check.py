"""Type-check an expression, with declared types where known and dyn otherwise.

Room: expr. Takes: Node and Environment. Gives: the result's Type. Next:
expr/cel/linking/program.py. May touch: nothing outside its arguments.
Source: cel-go checker/checker.go and the API server's validators (homogeneous literals,
durations, timestamps and regular expressions given as constants);
docs/behaviour/cel 4, 11.

Over 400 lines: one method per kind of node, and all share one substitution. Each method
calls ``check`` directly, because Python's stack limits how deeply expressions can nest.
"""

from operator import itemgetter
from typing import Final

from kyverno_mp.errors import BudgetExceeded, ExpressionInvalid
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.environment import TYPE_NAMES, Environment, RecordFields
from kyverno_mp.expr.cel.library import Overload
from kyverno_mp.expr.cel.nodes import (
    Call,
    Const,
    Ident,
    ListLit,
    Macro,
    MapLit,
    Node,
    Select,
    StructLit,
)
from kyverno_mp.expr.cel.syntax.lex import located
from kyverno_mp.expr.cel.syntax.literals import Literals
from kyverno_mp.expr.cel.syntax.names import qualified_call, qualified_name
from kyverno_mp.expr.cel.types import (
    BOOL,
    DYN,
    ERROR,
    Substitution,
    Type,
)
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.limits import CEL_ERRORS_MAX, CEL_REPEATED_MAX

_CONST: Final = {
    "null": types.NULL,
    "bool": types.BOOL,
    "int": types.INT,
    "uint": types.UINT,
    "double": types.DOUBLE,
    "string": types.STRING,
    "bytes": types.BYTES,
}
_HANGING: Final = {2: slice(0, 2), 3: slice(2, 3)}
_NONE: Final = slice(0, 0)
"""Which terms of && and || are direct children of the root in cel-go's tree, by the
number of terms."""
_PLACE: Final = itemgetter(0)
_SHOWN: Final = {"in": "@in", "?:": "_?_:_"}
_SORTED: Final = (
    types.BOOL,
    types.BYTES,
    types.DOUBLE,
    types.DURATION,
    types.INT,
    types.STRING,
    types.TIMESTAMP,
    types.UINT,
)
"""The types that sortBy accepts as keys."""
_PREDICATES: Final = frozenset({"all", "exists", "existsOne", "filter"})


def check(node: Node, text: str, environment: Environment) -> Type:
    """Return the type of the expression.

    Raises: ExpressionInvalid with all problems, or if the check's own allowance is used
    up; BudgetExceeded if the environment's allowance is used up.
    """
    try:
        return _checked(node, text, environment)
    except BudgetExceeded as error:
        if environment.allowance is not None and environment.allowance.left < 0:
            raise
        raise ExpressionInvalid(error.code, error.message) from error


def _checked(node: Node, text: str, environment: Environment) -> Type:
    checker = _Checker(environment)
    result = checker.check(node)
    problems = checker.problems or checker.literals.problems(checker.found)
    if problems:
        kept = sorted(problems[:CEL_ERRORS_MAX], key=_PLACE)
        shown = [located(message, text, at) for at, message in kept]
        if len(problems) > len(kept):
            count = len(problems) - len(kept)
            shown.append(f"{count} more errors were truncated")
        raise ExpressionInvalid("cel.type", "\n".join(shown))
    return checker.found.apply(result, final=True)


class _Checker:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._library = environment.library
        self._locals: list[tuple[str, Type]] = []
        self._fresh = 0
        self.literals = Literals()
        self.found = Substitution(environment.allowance)
        self.problems: list[tuple[int, str]] = []

    def check(self, node: Node) -> Type:
        if type(node) is Const:
            return _CONST[node.kind]
        if type(node) is Ident:
            return self._ident(node)
        if type(node) is Select:
            return self._select(node)
        if type(node) is Call:
            return self._call(node)
        if type(node) is Macro:
            return self._macro(node)
        if type(node) is ListLit:
            return self._list(node)
        if type(node) is MapLit:
            return self._map(node)
        assert type(node) is StructLit
        return self._struct(node)

    def _problem(self, at: int, message: str) -> Type:
        self.problems.append((at, message))
        return ERROR

    def _variable(self) -> Type:
        self._fresh += 1
        return Type(f"_var{self._fresh - 1}", (), "param")

    def _local(self, name: str) -> Type | None:
        for bound, found in reversed(self._locals):
            if bound == name:
                return found
        return None

    def _ident(self, node: Ident) -> Type:
        found = self._local(node.name) or self._environment.variables.get(node.name)
        if found is not None:
            return found
        named = TYPE_NAMES.get(node.name)
        if named is not None:
            return types.type_of(named)
        return self._undeclared(node.at, node.name)

    def _undeclared(self, at: int, name: str) -> Type:
        return self._problem(at, f"undeclared reference to '{name}' (in container '')")

    def _select(self, node: Select) -> Type:
        name = qualified_name(node)
        if name in TYPE_NAMES and not node.test:
            return types.type_of(TYPE_NAMES[name])
        operand = self.found.apply(self.check(node.operand))
        was_optional = operand.name == "optional_type"
        if was_optional:
            operand = self.found.apply(operand.params[0])
        result = self._field(operand, node)
        if node.test:
            return BOOL
        if node.optional or was_optional:
            return types.optional_of(result)
        return result

    def _field(self, operand: Type, node: Select) -> Type:
        if operand.kind == "param":
            self.found.fits((DYN,), (operand,))
            return DYN
        if operand in (DYN, ERROR, types.ANY):
            return DYN
        if operand.name == "map":
            return operand.params[1]
        if operand.kind == "object":
            fields: RecordFields | None
            fields = self._environment.records.get(operand.name)
            if fields is None:
                fields = self._environment.constructors.get(operand.name)
            if fields is None:
                message = f"unexpected failed resolution of '{operand.name}'"
                return self._problem(node.at, message)
            field = fields.get(node.field)
            if field is None:
                return self._problem(node.at, f"undefined field '{node.field}'")
            return field
        # After the error, a value that is not a record is treated as dynamic.
        self._problem(node.at, f"type '{operand}' does not support field selection")
        return DYN

    def _call(self, node: Call) -> Type:
        name = node.function
        if node.target is not None:
            bound = {local for local, _ in self._locals}
            full = qualified_call(node, self._library, bound)
            if full:
                return self._resolve(
                    node, full, self._library.functions[full], self._args(node)
                )
            target = self.check(node.target)
            is_format = name == "format"
            self.literals.formats_open += is_format
            args = self._args(node)
            self.literals.formats_open -= is_format
            if is_format:
                self.literals.formats.append(node)
            found = self._library.members.get(name)
            return self._resolve(node, name, found, args, target)
        if name in ("&&", "||"):
            return self._logic(node)
        found = self._library.functions.get(name)
        return self._resolve(node, name, found, self._args(node))

    def _args(self, node: Call) -> tuple[Type, ...]:
        # A loop, because a comprehension would add a Python frame per level.
        found = []
        for arg in node.args:
            found.append(self.check(arg))  # noqa: PERF401 - see above
        return tuple(found)

    def _logic(self, node: Call) -> Type:
        good = []
        for arg in node.args:
            good.append(self._has_to_be_bool(arg, self.check(arg)))  # noqa: PERF401 - as in _args
        # cel-go builds a balanced tree of the terms and reports the error of a direct
        # child of the root at the root.
        return BOOL if all(good[_HANGING.get(len(good), _NONE)]) else ERROR

    def _has_to_be_bool(self, node: Node, given: Type) -> bool:
        if self.found.fits((given,), (BOOL,)):
            return True
        self._problem(_at(node), f"expected type 'bool' but found '{given}'")
        return False

    def _no_overload(self, at: int, name: str, shown: str) -> Type:
        return self._problem(
            at, f"found no matching overload for '{name}' applied to '{shown}'"
        )

    def _shown(self, given: Type) -> str:
        return str(self.found.apply(given, final=True))

    def _resolve(
        self,
        node: Call,
        name: str,
        overloads: list[Overload] | None,
        args: tuple[Type, ...],
        target: Type | None = None,
    ) -> Type:
        self.literals.note_argument(node, name)
        if overloads is None:
            library = self._library
            if name not in library.functions and name not in library.members:
                return self._undeclared(node.at, name)
            overloads = []
        given = args if target is None else (target, *args)
        result: Type | None = None
        for overload in overloads:
            wanted, gives = self._instance(overload)
            if self.found.fits(given, wanted):
                gives = self.found.apply(gives)
                result = gives if result is None or result == gives else DYN
        if result is None:
            shown = ", ".join(self._shown(arg) for arg in args)
            head = "" if target is None else f"{self._shown(target)}."
            operator = _SHOWN.get(name, name)
            if not name[0].isalpha() and "_" not in operator:
                operator = f"_{operator}_"
            return self._no_overload(node.at, operator, f"{head}({shown})")
        return result

    def _instance(self, overload: Overload) -> tuple[tuple[Type, ...], Type]:
        """Rename the type variables of the overload to unique names."""
        names: dict[Type, Type] = {}

        def renamed(given: Type) -> Type:
            if given.kind == "param":
                if given not in names:
                    names[given] = self._variable()
                return names[given]
            if not given.params:
                return given
            params = tuple(renamed(param) for param in given.params)
            return Type(given.name, params, given.kind)

        return tuple(renamed(arg) for arg in overload.args), renamed(overload.result)

    def _list(self, node: ListLit) -> Type:
        found = []
        for position, item in enumerate(node.items):
            given = self.check(item)
            if position in node.optional:
                given = self._unwrapped(given, item)
            self.literals.note_member(item, given)
            found.append((_at(item), given))
        return types.list_of(self._joined(found, every=False))

    def _unwrapped(self, given: Type, node: Node) -> Type:
        given = self.found.apply(given)
        if given.name == "optional_type":
            return given.params[0]
        if given in (DYN, ERROR):
            return DYN
        self._problem(
            _at(node), f"expected type 'optional_type({given})' but found '{given}'"
        )
        return given

    def _joined(self, found: list[tuple[int, Type]], *, every: bool) -> Type:
        if not found:
            return self._variable()
        self.literals.note_items(found, every=every)
        joined = found[0][1]
        for _, given in found[1:]:
            joined = self.found.joined(joined, given)
        return joined

    def _map(self, node: MapLit) -> Type:
        keys, values = [], []
        for key, value, optional in node.entries:
            keys.append((_at(key), self.check(key)))
            given = self.check(value)
            self.literals.note_member(key, keys[-1][1])
            self.literals.note_member(value, given)
            values.append(
                (_at(value), self._unwrapped(given, value) if optional else given)
            )
        joined = self._joined(keys, every=True)
        return types.sized(types.map_of(joined, self._joined(values, every=True)))

    def _struct(self, node: StructLit) -> Type:
        fields = self._environment.constructors.get(node.name)
        if fields is None:
            return self._undeclared(node.at, node.name)
        for name, value, optional in node.fields:
            given = self.check(value)
            if optional:
                given = self._unwrapped(given, value)
            wanted = fields.get(name)
            if wanted is None:
                self._problem(_at(value), f"undefined field '{name}'")
            elif not self.found.fits((wanted,), (given,)):
                self._problem(
                    _at(value),
                    f"expected type of field '{name}' is '{wanted}'"
                    f" but provided type is '{self._shown(given)}'",
                )
        return types.object_type(node.name)

    def _macro(self, node: Macro) -> Type:
        noted = len(self.problems), self.literals.noted
        given = self.found.apply(self.check(node.range))
        if node.kind in ("optMap", "optFlatMap"):
            self._repeat(*noted)
        if node.kind == "bind":
            return self._bound(node, (given,))[0]
        if node.kind in ("optMap", "optFlatMap"):
            return self._optional_macro(node, given)
        key, item = self._range(node, given)
        if len(node.names) == 1:
            # Over a map, a single name is bound to the key, and ``filter`` keeps the
            # keys.
            item = key if given.name == "map" else item
            bound = self._bound(node, (item,))
        else:
            bound = self._bound(node, (key, item))
        return self._macro_result(node, key, item, bound)

    def _repeat(self, problems: int, literals: tuple[int, int]) -> None:
        """Record the errors of a target again, because cel-go expands the target twice.

        SAFETY: in a chain, each call doubles the errors, so they are repeated only
        while there are few.
        """
        count = len(self.problems) - problems
        if len(self.problems) + count <= CEL_REPEATED_MAX:
            spend(count)
            self.problems += self.problems[problems:]
        self.literals.repeat(literals)

    def _bound(self, node: Macro, given: tuple[Type, ...]) -> list[Type]:
        self._locals.extend(zip(node.names, given, strict=True))
        found = []
        for body in node.body:
            found.append(self.check(body))  # noqa: PERF401 - as in _args
        del self._locals[-len(given) :]
        return found

    def _range(self, node: Macro, given: Type) -> tuple[Type, Type]:
        if given.name == "list":
            return types.INT, given.params[0]
        if given.name == "map":
            return given.params[0], given.params[1]
        if given.kind == "param":
            self.found.fits((DYN,), (given,))
            return DYN, DYN
        if given in (DYN, ERROR):
            return DYN, DYN
        self._problem(
            _at(node.range),
            f"expression of type '{given}' cannot be range of a comprehension"
            " (must be list, map, or dynamic)",
        )
        return ERROR, ERROR

    def _macro_result(
        self, node: Macro, key: Type, item: Type, bound: list[Type]
    ) -> Type:
        if node.kind in _PREDICATES:
            return self._predicate(node, item, bound[0])
        if node.kind == "sortBy":
            return self._sorted(node, item, bound[0])
        if node.kind in ("map", "transformList"):
            result = types.list_of(bound[-1])
        elif node.kind == "transformMap":
            result = types.map_of(key, bound[-1])
        else:
            result = bound[-1]  # transformMapEntry
        if len(bound) > 1:
            self._choice(node, bound[0], result)
        return types.sized(result)

    def _sorted(self, node: Macro, item: Type, key: Type) -> Type:
        """Check the type of the keys by which the macro sorts the items."""
        result = types.list_of(item)
        for one in _SORTED:
            if self.found.fits((types.list_of(key),), (types.list_of(one),)):
                return result
        shown = f"{self._shown(result)}.({self._shown(types.list_of(key))})"
        return self._no_overload(node.at, "@sortByAssociatedKeys", shown)

    def _predicate(self, node: Macro, item: Type, found: Type) -> Type:
        if node.kind == "filter":
            self._choice(node, found, types.list_of(item))
            return types.list_of(item)
        if node.kind == "existsOne":
            self._choice(node, found, types.INT)
        else:
            self._has_to_be_bool(node.body[0], found)
        return BOOL

    def _choice(self, node: Macro, given: Type, result: Type) -> None:
        """Check the predicate that chooses between the previous and the next result."""
        if not self.found.fits((given,), (BOOL,)):
            shown = ", ".join(self._shown(one) for one in (given, result, result))
            self._no_overload(node.at, "_?_:_", f"({shown})")

    def _optional_macro(self, node: Macro, given: Type) -> Type:
        if given.name == "optional_type":
            item = given.params[0]
        elif given in (DYN, ERROR) or given.kind == "param":
            item = DYN
        else:
            self._no_overload(node.at, "hasValue", f"{given}.()")
            self._no_overload(node.at, "value", f"{given}.()")
            item = ERROR
        (result,) = self._bound(node, (item,))
        if node.kind == "optMap":
            return types.optional_of(result)
        result = self.found.apply(result)
        if result.name == "optional_type" or result in (DYN, ERROR):
            return result
        return self._no_overload(
            node.at, "_?_:_", f"(bool, {result}, optional_type(dyn))"
        )


def _at(node: Node) -> int:
    return node.at
