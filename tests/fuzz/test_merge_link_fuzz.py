"""A linked merge equals the general merge, for any patch and any Pod.

A failure means: the fast path that nearly all mutations take changes an object
differently from the slow path, which is compared with the real program.
"""

import copy
import json
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import InputError
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.leaves import Leaves, filled, link_leaves
from kyverno_mp.program.mutate.merge_link import link_merge
from kyverno_mp.program.mutate.merge_steps import Unfit
from kyverno_mp.program.mutate.strategic import StrategicPatch
from kyverno_mp.values.patches.merge_keys import PLAIN, shape_of

_SHAPE = shape_of("v1", "Pod") or PLAIN
_NAMES = st.sampled_from(["a", "b", "c"])
_SCALARS = st.sampled_from(["a", "b", "x1", "", 1, 2, True, None, 1.5, "(a)"])
_HOLES = st.sampled_from(["{{ one }}", "x{{ one }}", "{{ two }}"])
_WANTED = st.sampled_from(["*", "a", "x*", "!a", ">1", "a|b", 1, True, "{{ one }}"])


def _map(
    fields: dict[str, st.SearchStrategy[Any]],
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw maps of some of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


_ANY: st.SearchStrategy[Any] = st.one_of(
    _SCALARS, st.just({}), st.just([]), st.just({"k": "a"})
)
_ENV = st.lists(
    st.one_of(
        _map({"name": _NAMES, "value": _SCALARS}),
        st.fixed_dictionaries({"name": _NAMES, "value": _SCALARS}),
    ),
    max_size=3,
)
_INNER = _map({"k": _SCALARS, "l": _SCALARS, "m": _map({"k": _SCALARS})})
_REGULAR = st.lists(
    st.fixed_dictionaries(
        {"name": _NAMES, "image": st.sampled_from(["a", "x1", 2])},
        optional={"env": _ENV, "inner": _INNER},
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda c: c["name"],
)
_CONTAINERS = st.one_of(
    _REGULAR,
    _REGULAR,
    st.lists(
        st.one_of(
            st.fixed_dictionaries(
                {"name": _NAMES},
                optional={"image": _SCALARS, "env": _ENV, "inner": _INNER | _ANY},
            ),
            _map({"name": _ANY, "image": _ANY}),
        ),
        max_size=3,
    ),
)
_PODS = st.fixed_dictionaries(
    {"apiVersion": st.just("v1"), "kind": st.just("Pod")},
    optional={
        "metadata": _map(
            {
                "name": _NAMES,
                "labels": _INNER,
                "finalizers": st.lists(_NAMES, max_size=3),
            }
        ),
        "spec": st.one_of(
            _map(
                {
                    "containers": _CONTAINERS,
                    "inner": _INNER | _ANY,
                    "tolerations": st.lists(_INNER, max_size=2),
                    "volumes": _ENV,
                    "host": _SCALARS,
                }
            ),
            _ANY,
        ),
    },
)


def _anchored(
    fields: dict[str, st.SearchStrategy[Any]],
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw maps in which some keys have an anchor."""

    @st.composite
    def draw_map(draw: st.DrawFn) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key in draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
            anchor = draw(st.sampled_from(["", "", "", "+", "+", "?", "?", "<", "="]))
            if anchor in ("?", "<"):
                value = draw(st.one_of(_WANTED, _WANTED, fields[key]))
                out[f"{anchor.strip('?')}({key})"] = value
            else:
                text = f"{anchor}({key})" if anchor else key
                out[text] = draw(fields[key])
        return out

    return draw_map()


_LEAF = st.one_of(_SCALARS, _SCALARS, _HOLES)
_P_INNER = _anchored({"k": _LEAF, "l": _LEAF, "m": _anchored({"k": _LEAF})})
_P_ENV = st.lists(
    st.one_of(
        st.fixed_dictionaries({"name": _NAMES | _HOLES, "value": _LEAF}),
        _anchored({"name": _LEAF, "value": _LEAF}),
        st.just({"$patch": "replace"}),
    ),
    max_size=2,
)
_P_CONTAINER = _anchored(
    {"name": _LEAF, "image": _LEAF, "inner": _P_INNER, "env": _P_ENV}
)
_P_NAMED = _P_CONTAINER.map(lambda c: {"(name)": "*", **c})
_P_SPEC = _anchored(
    {
        "containers": st.lists(_P_NAMED | _P_CONTAINER, min_size=1, max_size=1)
        | st.lists(_P_CONTAINER, max_size=2),
        "inner": _P_INNER,
        "tolerations": st.lists(_P_INNER, max_size=2),
        "volumes": _P_ENV,
        "host": _LEAF,
    }
)
_PATCHES = st.one_of(
    _anchored(
        {
            "metadata": _anchored(
                {
                    "name": _LEAF,
                    "labels": _P_INNER,
                    "finalizers": st.lists(_NAMES, max_size=2),
                }
            ),
            "spec": _P_SPEC,
            "kind": st.just("Pod"),
        }
    ),
    st.fixed_dictionaries({"spec": _P_SPEC}),
)
_VALUES = st.one_of(_SCALARS, st.sampled_from([{}, [], {"k": None}, ["a"]]))


def _outcome(call: Any) -> str:
    try:
        return json.dumps(call())
    except InputError as error:
        return f"{error.code} {error.message}"


def _values(leaves: Leaves, one: Any, two: Any) -> list[Any]:
    """Fill the holes, without a scope: the text around a variable is dropped."""
    return [(one, two)[number % 2] for number in range(len(leaves.resolvers))]


@settings(max_examples=600)
@given(_PATCHES, _PODS, _VALUES, _VALUES)
def test_linked_merge_equals_the_general_one(
    patch: dict[str, Any], pod: dict[str, Any], one: Any, two: Any
) -> None:
    leaves = link_leaves(parse_document(patch))
    assert leaves is not None
    values = _values(leaves, one, two)
    linked = link_merge(leaves.shape, _SHAPE)
    if linked is None:
        event("rare")
        return
    before = copy.deepcopy((filled(leaves.shape, values), pod))
    try:
        found = linked.apply(pod, values)
    except (Unfit, InputError):
        event("unfit")
        return
    general = StrategicPatch(filled(leaves.shape, values), has_holes=False)
    general._merges[id(_SHAPE)] = None
    wanted = general.apply(pod, ())
    event("changed" if found is not pod else "same")
    # Compared as text: the order of keys decides the order of a patch's operations.
    assert json.dumps(found) == json.dumps(wanted)
    # Identity, so that no comparison is necessary: equal objects are not copied.
    assert (found is pod) == (wanted is pod)
    assert json.dumps([*before]) == json.dumps([filled(leaves.shape, values), pod])


@settings(max_examples=300)
@given(_PATCHES, _PATCHES, _PODS, _VALUES)
def test_successive_merges_have_the_same_result(
    first: dict[str, Any], second: dict[str, Any], pod: dict[str, Any], one: Any
) -> None:
    """This holds for either algorithm."""
    results = []
    for is_linked in (True, False):
        working, said = pod, []
        for patch in (first, second):
            leaves = link_leaves(parse_document(patch))
            assert leaves is not None
            strategic = StrategicPatch(leaves.shape, has_holes=True)
            if not is_linked:
                strategic._merges[id(_SHAPE)] = None
            values = _values(leaves, one, one)
            try:
                working = strategic.apply(working, values)
            except InputError as error:
                said.append(f"{error.code} {error.message}")
        results.append((json.dumps(working), said))
    assert results[0] == results[1]


_ROWS = st.lists(st.tuples(_VALUES, _VALUES), max_size=4)
_PLAIN_ROWS = st.lists(st.tuples(_NAMES, _NAMES | st.integers(0, 3)), max_size=4)


@settings(max_examples=600)
@given(_PATCHES, _PODS, _ROWS | _PLAIN_ROWS)
def test_rows_run_together_equal_rows_one_by_one(
    patch: dict[str, Any], pod: dict[str, Any], rows: list[tuple[Any, Any]]
) -> None:
    leaves = link_leaves(parse_document(patch))
    assert leaves is not None
    linked = link_merge(leaves.shape, _SHAPE)
    if linked is None:
        event("rare")
        return
    before = json.dumps(pod)
    values = [_values(leaves, one, two) for one, two in rows]
    try:
        found = linked.apply_each(pod, values)
    except (Unfit, InputError):
        event("unfit")
        return
    wanted = pod
    for each in values:
        wanted = linked.apply(wanted, each)
    event("changed" if found is not pod else "same")
    # Compared as text: the order of keys decides the order of a patch's operations.
    assert json.dumps(found) == json.dumps(wanted)
    assert json.dumps(pod) == before
