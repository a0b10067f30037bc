"""The named values of a rule of ``json scan``, and queries that read them.

Room: cli. Takes: a payload and the rule's context entries. Gives: EntryScope, search.
Next: scan.py. May touch: the clock.
Source: docs/behaviour/cli 19 (json scan); kyverno-json pkg/binding, pkg/engine/assert.
"""

from collections.abc import Sequence

from kyverno_mp.cli.assertions import new_runtime
from kyverno_mp.errors import ExpressionFailed, InputError
from kyverno_mp.expr.assertion.dialect import link_dialect
from kyverno_mp.expr.assertion.parse import parse_expression
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.jsonvalue import Json


class EntryScope:
    """The payload, and the context entries, which are evaluated on first use.

    KYVERNO: only a text that is an expression is evaluated, not the texts in a map or
    list; an entry sees the entries before it, and its failure is that of its users.
    """

    operation = ""

    def __init__(
        self,
        payload: Json,
        entries: Sequence[dict[str, Json]],
        values: dict[int, Json] | None = None,
    ) -> None:
        """``values``: those of the entries so far, by position.

        Each entry has its own scope; without common values, entries that read several
        others would be evaluated exponentially often.
        """
        self.root: dict[str, Json] = {"payload": payload}
        self.runtime = new_runtime()
        self._payload = payload
        self._entries = entries
        self._values: dict[int, Json] = {} if values is None else values

    def ensure(self, query: str) -> None:
        """Evaluate the last entry of the name. Raises: ExpressionFailed."""
        index = len(self._entries) - 1
        while index >= 0 and self._entries[index]["name"] != query:
            index -= 1
        if index < 0:
            return
        if index not in self._values:
            outer = EntryScope(self._payload, self._entries[:index], self._values)
            value = self._entries[index].get("variable")
            path = f"context[{index}].variable"
            try:
                self._values[index] = _computed(value, path, outer)
            except RecursionError as error:
                message = f"{path}: Internal error: too many entries read one another"
                raise ExpressionFailed("assertion.too_much", message) from error
        self.root[query] = self._values[index]

    def get(self, name: str, default: Json, /) -> Json:
        """Return the value of ``$name``."""
        self.ensure(name[1:])
        return self.root.get(name[1:], default)

    def search(self, statement: str) -> Json:
        """Run one JMESPath of the assertion dialect. Raises: InputError."""
        runtime = new_runtime()
        runtime.bindings = self
        return link_dialect(parse(statement, community=True))(runtime, self._payload)


def _computed(value: Json, path: str, scope: EntryScope) -> Json:
    expression = parse_expression(value) if type(value) is str else None
    if expression is None or not expression.computed:
        return value
    for used, word in ((expression.each, "foreach"), (expression.binding, "binding")):
        if used:
            reason = f"{word} is not supported in context"
            message = f"{path}: Invalid value: {quote(value)}: {reason}"
            raise ExpressionFailed("assertion.failed", message)
    try:
        return scope.search(expression.statement)
    except InputError as error:
        message = f"{path}: Internal error: {error.message}"
        raise ExpressionFailed("assertion.failed", message) from error
