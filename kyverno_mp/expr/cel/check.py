"""Type-check an expression, with declared types where known and dyn otherwise.

Room: expr. Takes: Node and Environment. Gives: the result's Type. Next:
expr/cel/linking/program.py.
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


def check(node: Node, source: str, environment: Environment) -> Type:
    """Return the type of the expression.

    Raises: ExpressionInvalid with all problems, or if the check's own allowance is used
    up; BudgetExceeded if the environment's allowance is used up.
    """
    try:
        return _checked(node, source, environment)
    except BudgetExceeded as error:
        if environment.allowance is not None and environment.allowance.left < 0:
            raise
        raise ExpressionInvalid(error.code, error.message) from error


def _checked(node: Node, source: str, environment: Environment) -> Type:
    checker = _Checker(environment)
    result = checker.check(node)
    problems = checker.problems or checker.literals.problems(checker.found)
    if problems:
        reported = sorted(problems[:CEL_ERRORS_MAX], key=_PLACE)
        messages = [located(message, source, at) for at, message in reported]
        if len(problems) > len(reported):
            count = len(problems) - len(reported)
            messages.append(f"{count} more errors were truncated")
        raise ExpressionInvalid("cel.type", "\n".join(messages))
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
        for bound, local_type in reversed(self._locals):
            if bound == name:
                return local_type
        return None

    def _ident(self, node: Ident) -> Type:
        declared = self._local(node.name) or self._environment.variables.get(node.name)
        if declared is not None:
            return declared
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
            overloads = self._library.members.get(name)
            return self._resolve(node, name, overloads, args, target)
        if name in ("&&", "||"):
            return self._logic(node)
        overloads = self._library.functions.get(name)
        return self._resolve(node, name, overloads, self._args(node))

    def _args(self, node: Call) -> tuple[Type, ...]:
        # A loop, because a comprehension would add a Python frame per level.
        arg_types = []
        for arg in node.args:
            arg_types.append(self.check(arg))  # noqa: PERF401 - see above
        return tuple(arg_types)

    def _logic(self, node: Call) -> Type:
        good = []
        for arg in node.args:
            good.append(self._has_to_be_bool(arg, self.check(arg)))  # noqa: PERF401 - as in _args
        # cel-go builds a balanced tree of the terms and reports the error of a direct
        # child of the root at the root.
        return BOOL if all(good[_HANGING.get(len(good), _NONE)]) else ERROR

    def _has_to_be_bool(self, node: Node, actual: Type) -> bool:
        if self.found.fits((actual,), (BOOL,)):
            return True
        self._problem(_at(node), f"expected type 'bool' but found '{actual}'")
        return False

    def _no_overload(self, at: int, name: str, arguments: str) -> Type:
        return self._problem(
            at, f"found no matching overload for '{name}' applied to '{arguments}'"
        )

    def _shown(self, actual: Type) -> str:
        return str(self.found.apply(actual, final=True))

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
        operands = args if target is None else (target, *args)
        result: Type | None = None
        for overload in overloads:
            parameters, gives = self._instance(overload)
            if self.found.fits(operands, parameters):
                gives = self.found.apply(gives)
                result = gives if result is None or result == gives else DYN
        if result is None:
            printed = ", ".join(self._shown(arg) for arg in args)
            head = "" if target is None else f"{self._shown(target)}."
            operator = _SHOWN.get(name, name)
            if not name[0].isalpha() and "_" not in operator:
                operator = f"_{operator}_"
            return self._no_overload(node.at, operator, f"{head}({printed})")
        return result

    def _instance(self, overload: Overload) -> tuple[tuple[Type, ...], Type]:
        """Rename the type variables of the overload to unique names."""
        names: dict[Type, Type] = {}

        def renamed(parameter: Type) -> Type:
            if parameter.kind == "param":
                if parameter not in names:
                    names[parameter] = self._variable()
                return names[parameter]
            if not parameter.params:
                return parameter
            params = tuple(renamed(param) for param in parameter.params)
            return Type(parameter.name, params, parameter.kind)

        return tuple(renamed(arg) for arg in overload.args), renamed(overload.result)

    def _list(self, node: ListLit) -> Type:
        item_types = []
        for position, item in enumerate(node.items):
            item_type = self.check(item)
            if position in node.optional:
                item_type = self._unwrapped(item_type, item)
            self.literals.note_member(item, item_type)
            item_types.append((_at(item), item_type))
        return types.list_of(self._joined(item_types, every=False))

    def _unwrapped(self, actual: Type, node: Node) -> Type:
        actual = self.found.apply(actual)
        if actual.name == "optional_type":
            return actual.params[0]
        if actual in (DYN, ERROR):
            return DYN
        self._problem(
            _at(node), f"expected type 'optional_type({actual})' but found '{actual}'"
        )
        return actual

    def _joined(self, members: list[tuple[int, Type]], *, every: bool) -> Type:
        if not members:
            return self._variable()
        self.literals.note_items(members, every=every)
        joined = members[0][1]
        for _, member_type in members[1:]:
            joined = self.found.joined(joined, member_type)
        return joined

    def _map(self, node: MapLit) -> Type:
        keys, values = [], []
        for key, value, optional in node.entries:
            keys.append((_at(key), self.check(key)))
            value_type = self.check(value)
            self.literals.note_member(key, keys[-1][1])
            self.literals.note_member(value, value_type)
            values.append(
                (
                    _at(value),
                    self._unwrapped(value_type, value) if optional else value_type,
                )
            )
        joined = self._joined(keys, every=True)
        return types.sized(types.map_of(joined, self._joined(values, every=True)))

    def _struct(self, node: StructLit) -> Type:
        fields = self._environment.constructors.get(node.name)
        if fields is None:
            return self._undeclared(node.at, node.name)
        for name, value, optional in node.fields:
            actual = self.check(value)
            if optional:
                actual = self._unwrapped(actual, value)
            declared = fields.get(name)
            if declared is None:
                self._problem(_at(value), f"undefined field '{name}'")
            elif not self.found.fits((declared,), (actual,)):
                self._problem(
                    _at(value),
                    f"expected type of field '{name}' is '{declared}'"
                    f" but provided type is '{self._shown(actual)}'",
                )
        return types.object_type(node.name)

    def _macro(self, node: Macro) -> Type:
        noted = len(self.problems), self.literals.noted
        range_type = self.found.apply(self.check(node.range))
        if node.kind in ("optMap", "optFlatMap"):
            self._repeat(*noted)
        if node.kind == "bind":
            return self._bound(node, (range_type,))[0]
        if node.kind in ("optMap", "optFlatMap"):
            return self._optional_macro(node, range_type)
        key, item = self._range(node, range_type)
        if len(node.names) == 1:
            # Over a map, a single name is bound to the key, and ``filter`` keeps the
            # keys.
            item = key if range_type.name == "map" else item
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

    def _bound(self, node: Macro, bound_types: tuple[Type, ...]) -> list[Type]:
        self._locals.extend(zip(node.names, bound_types, strict=True))
        body_types = []
        for body in node.body:
            body_types.append(self.check(body))  # noqa: PERF401 - as in _args
        del self._locals[-len(bound_types) :]
        return body_types

    def _range(self, node: Macro, range_type: Type) -> tuple[Type, Type]:
        if range_type.name == "list":
            return types.INT, range_type.params[0]
        if range_type.name == "map":
            return range_type.params[0], range_type.params[1]
        if range_type.kind == "param":
            self.found.fits((DYN,), (range_type,))
            return DYN, DYN
        if range_type in (DYN, ERROR):
            return DYN, DYN
        self._problem(
            _at(node.range),
            f"expression of type '{range_type}' cannot be range of a comprehension"
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
        for key_type in _SORTED:
            if self.found.fits((types.list_of(key),), (types.list_of(key_type),)):
                return result
        printed = f"{self._shown(result)}.({self._shown(types.list_of(key))})"
        return self._no_overload(node.at, "@sortByAssociatedKeys", printed)

    def _predicate(self, node: Macro, item: Type, body_type: Type) -> Type:
        if node.kind == "filter":
            self._choice(node, body_type, types.list_of(item))
            return types.list_of(item)
        if node.kind == "existsOne":
            self._choice(node, body_type, types.INT)
        else:
            self._has_to_be_bool(node.body[0], body_type)
        return BOOL

    def _choice(self, node: Macro, test_type: Type, result: Type) -> None:
        """Check the predicate that chooses between the previous and the next result."""
        if not self.found.fits((test_type,), (BOOL,)):
            printed = ", ".join(
                self._shown(operand) for operand in (test_type, result, result)
            )
            self._no_overload(node.at, "_?_:_", f"({printed})")

    def _optional_macro(self, node: Macro, actual: Type) -> Type:
        if actual.name == "optional_type":
            item = actual.params[0]
        elif actual in (DYN, ERROR) or actual.kind == "param":
            item = DYN
        else:
            self._no_overload(node.at, "hasValue", f"{actual}.()")
            self._no_overload(node.at, "value", f"{actual}.()")
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
