"""Follow the variables of ``context``.

Room: cli. Takes: context entries, the names of queries. Gives: the names with the
entries. Next: rules.py, foreach.py.
Source: docs/behaviour/engine 3.7.
"""

from collections.abc import Sequence

from kyverno_mp.cli.fix.rewrite.cluster_reads import read_names
from kyverno_mp.cli.fix.rewrite.conditions import side
from kyverno_mp.cli.fix.rewrite.jmespath import value_of
from kyverno_mp.cli.fix.rewrite.query_values import Constant, Default, Names, Stream
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten
from kyverno_mp.cli.fix.rewrite.typed import Typed
from kyverno_mp.policy.fields.context import ContextEntry


def with_context(
    entries: Sequence[ContextEntry], names: Names, *, reads: bool = False
) -> Names:
    """Return the names with those of a context. Raises: NotRewritten.

    ``reads``: the policy declares the variables of entries that read the cluster.
    """
    if not entries:
        return names
    known = dict(names)
    for entry in entries:
        variable = entry.variable
        if variable is None and reads:
            known.update(read_names(entry, known))
            continue
        if variable is None:
            raise NotRewritten(f"context entry {entry.name}, which is no variable")
        if variable.jmes_path and variable.value is None:
            value = value_of(variable.jmes_path, known)
        elif variable.jmes_path:
            raise NotRewritten(f"context entry {entry.name} with value and jmesPath")
        else:
            value = side(variable.value, known)
        if variable.default is not None:
            if not isinstance(value, Typed | Stream):
                raise NotRewritten(f"context entry {entry.name} with a default")
            value = Default(value, variable.default)
        if isinstance(value, Constant) and type(value.value) is dict:
            raise NotRewritten(f"context entry {entry.name}, which is a map")
        known[entry.name] = value
    return known
