"""Represent the Go values in an assertion's payload that are not JSON data.

Room: expr.assertion. Takes: members of a request. Gives: GoString, GoStrings, GoMap,
NilMap, GoStruct. Next: program/bodies/assertion creates them; dialect, match, printing
and calls handle them.
Source: docs/behaviour/engine 6.7; kyverno
pkg/engine/handlers/validation/validate_assert.go.

KYVERNO: upstream's payload contains Go structs, a named string type and a map of
strings. JMESPath reads struct members by their Go names and supports only maps of
arbitrary values, and a named string never equals a literal.
"""

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.jmespath.interim import GoSlice
from kyverno_mp.values.go.gotext import GoValue, json_string, json_text, sprint
from kyverno_mp.values.jsonvalue import Json


class GoString(str, GoValue):
    """A string with a named type, such as ``AdmissionOperation``."""

    __slots__ = ()
    go_name = "v1.AdmissionOperation"

    def go_text(self) -> str:
        """Return the text itself."""
        return str.__str__(self)

    def go_json(self, *, escape_html: bool) -> str:
        """Return the quoted string."""
        return json_string(str.__str__(self), escape_html=escape_html)


class GoStrings(GoSlice, GoValue):
    """A slice of strings; nil if empty."""

    __slots__ = ("go_name",)

    def __init__(self, items: list[str], go_name: str = "[]string") -> None:
        super().__init__(items)
        self.go_name = go_name

    def go_text(self) -> str:
        """Print like ``%v``."""
        return sprint(list(self))

    def go_json(self, *, escape_html: bool) -> str:
        """Print as a list, or null."""
        return json_text(list(self) or None, escape_html=escape_html)


class GoMap(dict[str, Json], GoValue):
    """A map with one value type, which is not an object in JMESPath; nil if empty."""

    __slots__ = ("go_name",)

    def __init__(self, members: dict[str, Json], go_name: str) -> None:
        super().__init__(members)
        self.go_name = go_name

    def go_text(self) -> str:
        """Print like ``%v``."""
        return sprint(dict(self))

    def go_json(self, *, escape_html: bool) -> str:
        """Print as an object, or null."""
        return json_text(dict(self) or None, escape_html=escape_html)


class NilMap(dict[str, Json], GoValue):
    """The missing object of a request: an empty object that prints as null."""

    __slots__ = ()
    go_name = "map[string]interface {}"

    def go_text(self) -> str:
        """Print like ``%v``."""
        return "map[]"

    def go_json(self, *, escape_html: bool) -> str:  # noqa: ARG002 - unused for null
        """Print null."""
        return "null"


class GoStruct(GoValue):
    """A struct: its members by their Go names, in order.

    ``tags``: the members' JSON names in the same order; a member whose name ends in
    ``?`` is omitted if its value is empty. ``comparable``: whether Go can compare two
    such structs.
    """

    __slots__ = ("comparable", "go_name", "members", "tags")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        go_name: str,
        members: dict[str, Json],
        tags: tuple[str, ...],
        *,
        comparable: bool = False,
    ) -> None:
        self.go_name = go_name
        self.members = members
        self.tags = tags
        self.comparable = comparable

    def member(self, name: str) -> Json:
        """Return a member by its Go name (the initial may be lower case), or None."""
        return self.members.get(name[:1].upper() + name[1:])

    def __eq__(self, other: object) -> bool:
        """Compare deeply, like reflect.DeepEqual."""
        return isinstance(other, GoStruct) and (
            (self.go_name, self.members) == (other.go_name, other.members)
        )

    def same(self, go_struct: "GoStruct") -> bool:
        """Compare like Go's ``==``. Raises: ExpressionFailed where Go panics."""
        if self.go_name == go_struct.go_name and not self.comparable:
            raise ExpressionFailed(
                "assertion.match",
                f"runtime error: comparing uncomparable type {self.go_name}",
            )
        return self == go_struct

    def go_text(self) -> str:
        """Print like ``%v``: the values alone."""
        return "{" + " ".join(map(sprint, self.members.values())) + "}"

    def go_json(self, *, escape_html: bool) -> str:
        """Print as an object with the members in the order of the struct."""
        parts = []
        for tag, value in zip(self.tags, self.members.values(), strict=True):
            name = tag.removesuffix("?")
            if name == tag or value:
                member = json_text(value, escape_html=escape_html)
                parts.append(f"{json_string(name)}:{member}")
        return "{" + ",".join(parts) + "}"
