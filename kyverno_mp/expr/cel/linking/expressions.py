"""Link an expression to one closure: names become slots, functions implementations.

Room: expr. Takes: Node, the names of the environment, its Library. Gives: Linked: a
closure over a frame (a list: the Meter, the variables, the bound names) and its cost.
Next: program.py.
PERF: the cost of the parts that always run is summed at link time and charged once;
loops, right sides of ``&&`` and ``?:``, and size-dependent work are charged when they
run.
Source: cel-go interpreter/{planner,interpretable,runtimecost}.go;
docs/behaviour/cel 11, 12c.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kyverno_mp.errors import InputError
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.linking import macro as link_macro
from kyverno_mp.expr.cel.linking import operator as link_operator
from kyverno_mp.expr.cel.linking import path as link_path
from kyverno_mp.expr.cel.linking.dispatch import link_dispatch
from kyverno_mp.expr.cel.linking.frame import (
    Failed,
    Frame,
    Run,
    constant,
    constant_value,
    no_value,
    type_value,
)
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
from kyverno_mp.expr.cel.syntax.names import qualified_call
from kyverno_mp.expr.cel.values import (
    ENTRY_BYTES,
    LIST_BYTES,
    POINTER_BYTES,
    CelFailed,
    Meter,
    Optional,
    Uint,
    Value,
)

Constructor: TypeAlias = Callable[[dict[str, Value]], Value]

_LIST_COST: Final = 10
_MAP_COST: Final = 30
_STRUCT_COST: Final = 40
_FOLDED_COST_MAX: Final = 2_000
_SMALL_COST: Final = 4
"""A right side up to this cost is charged together with the left side, because a
separate charge would cost more."""
_KEY_TYPES: Final = frozenset({str, int, Uint, bool})


class Linker:
    """Links the expressions of one environment; ``variables`` are the slots 1, 2, ...

    ``records``: the variables whose values are values.Record. ``lazy``: the variables
    whose values may be a Failed. ``absent``: the variables that have no value here, so
    every use fails.
    """

    def __init__(
        self,
        variables: tuple[str, ...],
        library: Library,
        records: frozenset[str] = frozenset(),
        constructors: Mapping[str, Constructor] | None = None,
        *,
        lazy: frozenset[str] = frozenset(),
        absent: frozenset[str] = frozenset(),
    ) -> None:
        self.library = library
        self._slots = {name: slot for slot, name in enumerate(variables, 1)}
        self._records = records
        self._constructors = constructors or {}
        self._locals: list[str] = []
        named = self._slots.items()
        self._lazy = {slot for name, slot in named if name in lazy | absent}
        self._absent = {slot: no_value(name) for name, slot in named if name in absent}
        self._first_local = len(variables) + 1
        self.size = self._first_local
        self.cost = 0

    # Names.

    def slot(self, name: str) -> int:
        """Return the slot of a name; 0 if the name is not bound."""
        for position in range(len(self._locals) - 1, -1, -1):
            if self._locals[position] == name:
                return self._first_local + position
        return self._slots.get(name, 0)

    def is_record(self, name: str) -> bool:
        """Return whether the value of a name is a Record."""
        return name in self._records and name not in self._locals

    def is_lazy(self, name: str) -> bool:
        """Return whether the slot of a name may contain a Failed."""
        return self.slot(name) in self._lazy

    def bind(self, names: tuple[str, ...], *, lazy: bool = False) -> int:
        """Bind names to new slots and return the first slot."""
        first = self._first_local + len(self._locals)
        self._locals.extend(names)
        if lazy:
            self._lazy.add(first)
        else:
            self._lazy.difference_update(range(first, first + len(names)))
        self.size = max(self.size, first + len(names))
        return first

    def unbind(self, names: tuple[str, ...]) -> None:
        """Remove the most recently bound names."""
        del self._locals[-len(names) :]

    # Costs.

    def block(self, node: Node) -> tuple[Run, int]:
        """Link a part that may run any number of times; return its cost separately."""
        before, self.cost = self.cost, 0
        run = self.link(node)
        cost, self.cost = self.cost, before
        return run, cost

    def branch(self, node: Node) -> Run:
        """Link a conditional part; unless it is cheap, its closure charges its cost."""
        run, cost = self.block(node)
        if cost <= _SMALL_COST:
            self.cost += cost
            return run

        def charged(s: Frame) -> Value:
            meter = s[0]
            meter.left -= cost
            if meter.left < meter.check_below:
                meter.check()
            return run(s)

        return charged

    # Nodes.

    def link(self, node: Node) -> Run:
        """Link one node."""
        if type(node) is Select:
            return link_path.link_select(self, node)
        if type(node) is Call:
            return self._call(node)
        if type(node) is Const:
            return constant(constant_value(node))
        if type(node) is Ident:
            return self._ident(node)
        if type(node) is Macro:
            self.cost += 1
            return link_macro.link_macro(self, node)
        if type(node) is ListLit:
            return self._list(node)
        if type(node) is MapLit:
            return self._map(node)
        assert type(node) is StructLit
        return self._struct(node)

    def _ident(self, node: Ident) -> Run:
        self.cost += 1
        slot = self.slot(node.name)
        if slot in self._absent:
            failed = self._absent[slot]
            return lambda _s: _used(failed)
        if slot in self._lazy:
            return lambda s: _used(s[slot])
        if slot:
            return lambda s: s[slot]
        return constant(type_value(node.name))

    def _call(self, node: Call) -> Run:
        self.cost += 1
        if node.target is None:
            run = link_operator.link_operator(self, node)
            if run is not None:
                return run
            return self._function(node.function, node.args, member=False)
        full = qualified_call(node, self.library, self._locals)
        if full:
            return self._function(full, node.args, member=False)
        run = link_operator.link_member(self, node)
        if run is not None:
            return run
        return self._function(node.function, (node.target, *node.args), member=True)

    def _function(self, name: str, args: tuple[Node, ...], *, member: bool) -> Run:
        table = self.library.members if member else self.library.functions
        runs = []
        for arg in args:
            runs.append(self.link(arg))  # noqa: PERF401 - a comprehension is one more frame at each level
        overloads = table.get(name, ())
        run = link_dispatch(name, overloads, tuple(runs))
        if args and all(type(arg) is Const for arg in args):
            folded = _folded(run, self._first_local)
            if folded is not None:
                return folded
        self.cost += max([each.cost for each in overloads], default=0)
        return run

    def _list(self, node: ListLit) -> Run:
        self.cost += _LIST_COST
        if not node.optional and all(type(item) is Const for item in node.items):
            return constant([constant_value(item) for item in node.items])
        runs = []
        for item in node.items:
            runs.append(self.link(item))  # noqa: PERF401 - as in _function
        if not node.optional:
            size = LIST_BYTES + len(runs) * POINTER_BYTES

            def build_plain(s: Frame) -> list[Value]:
                s[0].budget.bytes_left -= size
                return [run(s) for run in runs]

            return build_plain
        marked = [(run, at in node.optional) for at, run in enumerate(runs)]

        def build(s: Frame) -> list[Value]:
            s[0].budget.bytes_left -= LIST_BYTES + len(marked) * POINTER_BYTES
            out = []
            for run, optional in marked:
                value = run(s)
                if not optional:
                    out.append(value)
                elif _present(value):
                    out.append(value.value)
            return out

        return build

    def _map(self, node: MapLit) -> Run:
        self.cost += _MAP_COST
        entries = []
        for key, value, optional in node.entries:
            entries.append((self.link(key), self.link(value), optional))
        size = LIST_BYTES + len(entries) * ENTRY_BYTES
        self.cost += len(entries) * 4

        def build(s: Frame) -> dict[Value, Value]:
            s[0].budget.bytes_left -= size
            out = {}
            for key_run, run, optional in entries:
                key = key_run(s)
                if key.__class__ not in _KEY_TYPES:
                    raise CelFailed("unsupported key type")
                value = run(s)
                if not optional:
                    out[key] = value
                elif _present(value):
                    out[key] = value.value
            return out

        return build

    def _struct(self, node: StructLit) -> Run:
        self.cost += _STRUCT_COST
        construct = self._constructors[node.name]
        fields = []
        for name, value, optional in node.fields:
            fields.append((name, self.link(value), optional))
        size = 3 * LIST_BYTES + len(fields) * ENTRY_BYTES

        def build(s: Frame) -> Value:
            s[0].budget.bytes_left -= size
            out = {}
            for name, run, optional in fields:
                value = run(s)
                if not optional:
                    out[name] = value
                elif _present(value):
                    out[name] = value.value
            return construct(out)

        return build


def _folded(run: Run, size: int) -> Run | None:
    """Return a closure with the result of a call on literals; None if it fails.

    PERF: ``quantity('1Gi')`` is parsed once, because its result depends only on
    literals and is immutable. Slow calls and large results are not folded, because a
    folded result stays in memory as long as the policy.
    """
    try:
        return constant(run([Meter(_FOLDED_COST_MAX), *([None] * size)]))
    except (CelFailed, InputError):
        return None


def _used(value: Value) -> Value:
    if value.__class__ is Failed:
        raise CelFailed(value.message)
    return value


def _present(value: Value) -> bool:
    if value.__class__ is not Optional:
        raise CelFailed("cannot initialize optional entry from non-optional value")
    return bool(value.present)
