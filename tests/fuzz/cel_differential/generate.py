"""Write random CEL expressions by type, from the declared overloads of a library."""

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.types import Type, list_of, map_of, optional_of
from tests.fuzz.cel_differential.samples import POOLS

OPERATORS: Final = ("+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in")
_SIMPLE: Final = (
    types.BOOL, types.INT, types.UINT, types.DOUBLE, types.STRING, types.BYTES,
    types.NULL, types.TIMESTAMP, types.DURATION,
)  # fmt: skip
_SKIPPED: Final = frozenset(
    [
        "random",
        "random.random",
        "time.now",
        "dyn",
        "get",
        "Get",
        "list",
        "List",
        "post",
        "Post",
        "toGVR",
        "ToGVR",
        "client",
        "Client",
        "getMetadata",
        "GetMetadata",
        "generate",
        "apply",
        "Apply",
        "verifyImageSignatures",
    ]
)
"""Functions that access the cluster or return another value each time."""
_OUTSIDE: Final = (
    "http.Context", "resource.Context", "globalcontext.Context", "imagedata.Context",
    "generator.Context", "imageverify.Context", "schema.GroupVersionResource",
)  # fmt: skip
_SEARCHES: Final = frozenset({"matches", "find", "findAll"})
_ZONED: Final = frozenset(
    [
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getFullYear",
        "getHours",
        "getMilliseconds",
        "getMinutes",
        "getMonth",
        "getSeconds",
    ]
)


def _pools(name: str) -> tuple[list[str], list[str]] | None:
    """Return the valid and the odd texts for the argument of a function."""
    found = POOLS["arguments"].get(name)
    return None if found is None else (POOLS[found[0]], POOLS[found[1]])


class Call(NamedTuple):
    """One overload with its name and style."""

    name: str
    args: tuple[Type, ...]
    result: Type
    is_member: bool


def calls(library: Library) -> list[Call]:
    """Return the pure overloads that the generator can write."""
    found = []
    for table, is_member in ((library.functions, False), (library.members, True)):
        for name, overloads in table.items():
            for overload in overloads:
                touched = [t.name for t in (*overload.args, overload.result)]
                if name in _SKIPPED or any(
                    n in _OUTSIDE or n.startswith("kubernetes.authorization")
                    for n in touched
                ):
                    continue
                found.append(Call(name, overload.args, overload.result, is_member))
    return found


def quoted(text: str, random: Random) -> str:
    """Write a CEL string literal in one of several ways."""
    way = random.random()
    if way < 0.1 and text.isprintable() and not set(text) & set("'\\"):
        return f"r'{text}'"
    if way < 0.15 and "\\" not in text and '"' not in text and text.isprintable():
        return f'"""{text}"""'
    out = []
    mark = random.choice("'\"")
    for char in text:
        code = ord(char)
        if char in (mark, "\\"):
            out.append("\\" + char)
        elif char == "\n":
            out.append("\\n")
        elif code < 0x20 or code == 0x7F:
            out.append(
                random.choice((f"\\x{code:02x}", f"\\{code:03o}", f"\\u{code:04x}"))
            )
        elif code > 0xFFFF and random.random() < 0.3:
            out.append(f"\\U{code:08x}")
        elif 0x7F < code < 0x10000 and (
            random.random() < 0.3 or not char.isprintable()
        ):
            out.append(f"\\u{code:04x}")
        else:
            out.append(char)
    return mark + "".join(out) + mark


class Generator:
    """A generator of random expressions; equal seeds give equal expressions."""

    def __init__(self, random: Random, found: list[Call]) -> None:
        self.random = random
        self.calls = found
        self.scope: list[tuple[str, Type]] = []
        self.has_bind = any(call.name == "math.@min" for call in found)
        self._by_result: dict[str, list[Call]] = {}
        for call in found:
            key = "*" if call.result.kind == "param" else call.result.name
            self._by_result.setdefault(key, []).append(call)

    # -- types
    def simple(self) -> Type:
        return self.random.choice(_SIMPLE)

    def any_type(self, depth: int = 2) -> Type:
        way = self.random.random()
        if depth <= 0 or way < 0.6:
            return self.simple()
        if way < 0.75:
            return list_of(self.any_type(depth - 1))
        if way < 0.87:
            return map_of(
                self.random.choice((types.STRING, types.INT, types.BOOL, types.UINT)),
                self.any_type(depth - 1),
            )
        if way < 0.93:
            return optional_of(self.any_type(depth - 1))
        return types.DYN

    def bound(self, given: Type, names: dict[Type, Type]) -> Type:
        if given.kind == "param":
            if given not in names:
                names[given] = self.any_type(1)
            return names[given]
        if not given.params:
            return given
        return Type(
            given.name, tuple(self.bound(p, names) for p in given.params), given.kind
        )

    # -- expressions
    def call(
        self, call: Call, depth: int, names: dict[Type, Type] | None = None
    ) -> str:
        names = {} if names is None else names
        args = []
        for place, wanted in enumerate(call.args):
            args.append(
                self.argument(call, place, self.bound(wanted, names), depth - 1)
            )
        return self.written(call, args)

    def written(self, call: Call, args: list[str]) -> str:
        name = call.name
        if name in OPERATORS:
            return f"({args[0]} {name} {args[1]})"
        if name == "?:":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        if name in ("!_", "-_"):
            return f"{name[0]}({args[0]})"
        if name.startswith("math.@"):
            # The expansions of the macros.
            name = "math.least" if name == "math.@min" else "math.greatest"
        if name == "_[_]":
            return f"{args[0]}[{args[1]}]"
        if name == "_[?_]":
            return f"{args[0]}[?{args[1]}]"
        if call.is_member:
            return f"{args[0]}.{name}({', '.join(args[1:])})"
        return f"{name}({', '.join(args)})"

    def argument(self, call: Call, place: int, wanted: Type, depth: int) -> str:
        random = self.random
        if wanted == types.STRING and random.random() < 0.85:
            pools = None
            if (place == 0 and not call.is_member) or (place == 1 and call.is_member):
                pools = _pools(call.name)
            if place == 1 and call.name in _SEARCHES:
                pools = POOLS["patterns"], POOLS["bad_patterns"]
            if place == 1 and call.name in _ZONED:
                pools = (POOLS["zones"], POOLS["zones"])
            if place == 0 and call.name == "format":
                pools = (POOLS["formats"], POOLS["formats"])
            if call.name.endswith("listObjToMap"):
                pools = (POOLS["keys"], POOLS["keys"])
            if pools is not None:
                text = quoted(random.choice(pools[random.random() < 0.3]), random)
                return f"dyn({text})" if random.random() < 0.2 else text
        if call.name == "unmarshal" and place == 1:
            return quoted(random.choice(POOLS["jsons"]), random)
        if call.name == "format" and place == 1:
            count = random.randrange(4)
            given = [self.of(self.any_type(1), depth) for _ in range(count)]
            return f"[{', '.join(given)}]"
        if call.name == "lists.range":
            return random.choice(("0", "3", "-1", "5", "object.n"))
        if call.name.endswith("listObjToMap") and place < 2 and random.random() < 0.6:
            return str(random.choice(POOLS["objects"]))
        return self.of(wanted, depth)

    def of(self, wanted: Type, depth: int) -> str:
        random = self.random
        way = random.random()
        if way < 0.03:
            wanted = self.any_type(1)
        elif way < 0.09:
            return str(random.choice(POOLS["paths"]))
        elif way < 0.15:
            kind = self.any_type(1) if random.random() < 0.5 else wanted
            return f"dyn({self.leaf(kind, depth)})"
        local = [name for name, kind in self.scope if kind in (wanted, types.DYN)]
        if local and random.random() < 0.4:
            return random.choice(local)
        if depth <= 0 or random.random() < 0.35:
            return self.leaf(wanted, depth)
        return self.built(wanted, depth)

    def built(self, wanted: Type, depth: int) -> str:  # noqa: C901, PLR0912 - a case each
        random = self.random
        way = random.random()
        if way < 0.08:
            test = self.of(types.BOOL, depth - 1)
            first, second = self.of(wanted, depth - 1), self.of(wanted, depth - 1)
            return f"({test} ? {first} : {second})"
        if way < 0.12:
            return f"{self.of(list_of(wanted), depth - 1)}[{self.of(types.INT, 0)}]"
        if way < 0.16:
            target = self.of(optional_of(wanted), depth - 1)
            return f"{target}.orValue({self.of(wanted, depth - 1)})"
        if way < 0.20 and self.has_bind:
            return self.bind(wanted, depth)
        if way < 0.24:
            return f"{{'k': {self.of(wanted, depth - 1)}}}.k"
        if wanted == types.BOOL and way < 0.6:
            return self.logic(depth)
        if wanted.name == "list" and way < 0.6:
            return self.list_macro(wanted, depth)
        if wanted.name == "map" and way < 0.6:
            return self.map_macro(wanted, depth)
        if wanted.name == "optional_type" and way < 0.5:
            return self.optional_macro(wanted, depth)
        fitting = []
        for call in self._by_result.get(wanted.name, ()):
            names: dict[Type, Type] = {}
            if matches(call.result, wanted, names):
                fitting.append((call, names))
        if not fitting or random.random() < 0.15:
            fitting += [(c, {c.result: wanted}) for c in self._by_result.get("*", ())]
        if not fitting:
            return self.leaf(wanted, depth)
        call, names = random.choice(fitting)
        return self.call(call, depth, dict(names))

    def logic(self, depth: int) -> str:
        random = self.random
        way = random.random()
        if way < 0.4:
            sign = random.choice(("&&", "||"))
            terms = [
                self.of(types.BOOL, depth - 1) for _ in range(random.choice((2, 2, 3)))
            ]
            return "(" + f" {sign} ".join(terms) + ")"
        if way < 0.5:
            return f"!{self.of(types.BOOL, depth - 1)}"
        if way < 0.65:
            path = random.choice(POOLS["fields"])
            return f"has({path})"
        if way < 0.8:
            kind = self.any_type(1)
            other = kind if random.random() < 0.7 else types.DYN
            sign = random.choice(("==", "!="))
            return f"({self.of(kind, depth - 1)} {sign} {self.of(other, depth - 1)})"
        return self.predicate(depth)

    def predicate(self, depth: int) -> str:
        random = self.random
        if random.random() < 0.6:
            name = random.choice(("all", "exists", "exists_one"))
            source, kinds = self.source(depth, 1)
        else:
            name = random.choice(("all", "exists", "existsOne", "exists_one"))
            source, kinds = self.source(depth, 2)
        names, body = self.scoped(kinds, types.BOOL, depth)
        return f"{source}.{name}({', '.join(names)}, {body})"

    def source(self, depth: int, count: int) -> tuple[str, list[Type]]:
        """Return a range, and the types of its variables."""
        random = self.random
        way = random.random()
        if way < 0.2:
            path = random.choice(POOLS["ranges_of_macros"])
            return path, [types.DYN] * count
        inner = self.any_type(1)
        if way < 0.75:
            text = self.of(list_of(inner), depth - 1)
            return text, [inner] if count == 1 else [types.INT, inner]
        key = random.choice((types.STRING, types.INT))
        text = f"{{{self.leaf(key, 0)}: {self.of(inner, depth - 1)}}}"
        return text, [key] if count == 1 else [key, inner]

    def scoped(
        self, kinds: list[Type], wanted: Type, depth: int
    ) -> tuple[list[str], str]:
        names = [f"v{len(self.scope) + at}" for at in range(len(kinds))]
        self.scope.extend(zip(names, kinds, strict=True))
        body = self.of(wanted, depth - 1)
        del self.scope[-len(kinds) :]
        return names, body

    def list_macro(self, wanted: Type, depth: int) -> str:
        random = self.random
        inner = wanted.params[0]
        way = random.random()
        if way < 0.3:
            source, kinds = self.source(depth, 1)
            names, body = self.scoped(kinds, inner, depth)
            return f"{source}.map({names[0]}, {body})"
        if way < 0.45:
            source, kinds = self.source(depth, 1)
            names, body = self.scoped(kinds, inner, depth)
            _, test = self.scoped(kinds, types.BOOL, depth)
            return f"{source}.map({names[0]}, {test}, {body})"
        if way < 0.65:
            source, kinds = self.source(depth, 2)
            names, body = self.scoped(kinds, inner, depth)
            if random.random() < 0.5:
                _, test = self.scoped(kinds, types.BOOL, depth)
                return f"{source}.transformList({', '.join(names)}, {test}, {body})"
            return f"{source}.transformList({', '.join(names)}, {body})"
        text = self.of(wanted, depth - 1)
        if way < 0.85:
            names, test = self.scoped([inner], types.BOOL, depth)
            return f"{text}.filter({names[0]}, {test})"
        names, key = self.scoped(
            [inner],
            random.choice((types.INT, types.STRING, types.DOUBLE, self.simple())),
            depth,
        )
        return f"{text}.sortBy({names[0]}, {key})"

    def map_macro(self, wanted: Type, depth: int) -> str:
        random = self.random
        key, inner = wanted.params
        if random.random() < 0.6:
            text = self.of(map_of(key, self.any_type(1)), depth - 1)
            kinds = [key, types.DYN]
            names, body = self.scoped(kinds, inner, depth)
            if random.random() < 0.4:
                _, test = self.scoped(kinds, types.BOOL, depth)
                return f"{text}.transformMap({', '.join(names)}, {test}, {body})"
            return f"{text}.transformMap({', '.join(names)}, {body})"
        source, kinds = self.source(depth, 2)
        names, body = self.scoped(kinds, inner, depth)
        _, made = self.scoped(kinds, key, depth)
        return f"{source}.transformMapEntry({', '.join(names)}, {{{made}: {body}}})"

    def optional_macro(self, wanted: Type, depth: int) -> str:
        random = self.random
        way = random.random()
        inner = wanted.params[0]
        if way < 0.3:
            return str(random.choice(POOLS["optional_paths"]))
        source = self.any_type(1)
        text = self.of(optional_of(source), depth - 1)
        if way < 0.6:
            names, body = self.scoped([source], inner, depth)
            return f"{text}.optMap({names[0]}, {body})"
        if way < 0.8:
            names, body = self.scoped([source], wanted, depth)
            return f"{text}.optFlatMap({names[0]}, {body})"
        return f"{self.of(wanted, depth - 1)}.or({self.of(wanted, depth - 1)})"

    def bind(self, wanted: Type, depth: int) -> str:
        kind = self.any_type(1)
        text = self.of(kind, depth - 1)
        names, body = self.scoped([kind], wanted, depth)
        return f"cel.bind({names[0]}, {text}, {body})"

    def leaf(self, wanted: Type, depth: int) -> str:  # noqa: C901, PLR0912 - a case each
        random = self.random
        name = wanted.name
        choose = random.choice
        if name == "bool":
            return choose(
                (
                    "true",
                    "false",
                    "object.t",
                    "1 / 0 == 1",
                    "object.nope == 1",
                    "has(object.map)",
                )
            )
        if name == "int":
            return str(choose(POOLS["ints"]))
        if name == "uint":
            return str(choose(POOLS["uints"]))
        if name == "double":
            return str(choose(POOLS["doubles"]))
        if name == "string":
            return quoted(choose(POOLS["texts"]), random)
        if name == "bytes":
            return str(choose(POOLS["bytes"]))
        if name == "null_type":
            return "null"
        if name in ("timestamp", "duration"):
            pool = (
                (POOLS["times"], POOLS["bad_times"])
                if name == "timestamp"
                else (POOLS["durations"], POOLS["bad_durations"])
            )
            text = quoted(choose(pool[random.random() < 0.04]), random)
            return (
                f"{name}({text})" if random.random() < 0.8 else f"{name}(dyn({text}))"
            )
        if name == "list":
            if random.random() < 0.05:
                return self.of(types.DYN, 0)
            size = choose((0, 1, 1, 2, 2, 3, 4))
            given = [self.item(wanted.params[0], depth) for _ in range(size)]
            return f"[{', '.join(given)}]"
        if name == "map":
            count = choose((0, 1, 1, 1, 2, 2, 3))
            rows = [
                f"{self.of(wanted.params[0], -1)}: {self.item(wanted.params[1], depth)}"
                for _ in range(count)
            ]
            return f"{{{', '.join(rows)}}}"
        if name == "optional_type":
            inner = wanted.params[0]
            return choose(
                (
                    f"optional.of({self.of(inner, depth - 1)})",
                    "optional.none()",
                    f"optional.ofNonZeroValue({self.of(inner, depth - 1)})",
                )
            )
        if name in ("dyn", "any") or wanted.kind == "param":
            return (
                choose(POOLS["paths"])
                if random.random() < 0.4
                else self.leaf(self.any_type(1), depth)
            )
        if name == "type":
            return (
                f"type({self.of(self.any_type(1), depth - 1)})"
                if random.random() < 0.5
                else choose(POOLS["type_names"])
            )
        if name == "json.Json":
            return "json"
        if name == "yaml.Yaml":
            return "yaml"
        makers = {
            "net.IP": ("ip", POOLS["addresses"], POOLS["bad_addresses"]),
            "net.CIDR": ("cidr", POOLS["ranges"], POOLS["bad_ranges"]),
            "kubernetes.URL": ("url", POOLS["urls"], POOLS["bad_urls"]),
            "kubernetes.Quantity": (
                "quantity",
                POOLS["quantities"],
                POOLS["bad_quantities"],
            ),
            "kubernetes.Semver": ("semver", POOLS["versions"], POOLS["bad_versions"]),
            "kyverno.image": ("image", POOLS["images"], POOLS["bad_images"]),
        }
        if name in makers:
            maker, good, bad = makers[name]
            text = quoted(choose(bad if random.random() < 0.04 else good), random)
            if maker == "semver" and random.random() < 0.2:
                text = choose((*POOLS["versions"], *POOLS["bad_versions"]))
                return f"semver({quoted(text, random)}, true)"
            return f"{maker}({text})"
        if name == "kubernetes.NamedFormat":
            return (
                f"format.{choose(POOLS['named'][:10])}()"
                if random.random() < 0.7
                else f"format.named({quoted(choose(POOLS['named']), random)}).value()"
            )
        if name == "user.ServiceAccount":
            return f"parseServiceAccount({quoted(choose(POOLS['users']), random)})"
        raise AssertionError(name)

    def item(self, wanted: Type, depth: int) -> str:
        if self.random.random() < 0.04:
            return f"?{self.of(optional_of(wanted), depth - 1)}"
        return self.of(wanted, depth - 1)

    def expressions(self, count: int, depth: int) -> Iterator[tuple[str, str]]:
        """Yield (overload, expression): ``count`` of each overload, then free ones."""
        for call in self.calls:
            label = f"{call.name}({', '.join(map(str, call.args))})"
            for _ in range(count):
                yield label, self.call(call, self.random.choice((0, 1, 1, depth)))

    def free(self, count: int, depth: int) -> Iterator[tuple[str, str]]:
        for _ in range(count):
            kind = self.random.choice((types.BOOL, types.STRING, self.any_type()))
            yield "free", self.built(kind, self.random.choice((1, 2, depth)))


def matches(pattern: Type, wanted: Type, names: dict[Type, Type]) -> bool:
    """Bind the variables of a result type so that it equals the wanted type."""
    if pattern.kind == "param":
        return names.setdefault(pattern, wanted) == wanted
    if pattern.name != wanted.name or len(pattern.params) != len(wanted.params):
        return False
    return all(
        matches(a, b, names) for a, b in zip(pattern.params, wanted.params, strict=True)
    )
