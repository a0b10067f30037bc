"""Which patches are linked, and their results; the fuzz test compares more cases.

A failure means: mutation became slower without notice, or a rare patch is linked that
only the general algorithm supports.
"""

from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.leaves import link_leaves
from kyverno_mp.program.mutate.merge_link import link_merge
from kyverno_mp.program.mutate.merge_steps import Unfit
from kyverno_mp.values.patches.merge_keys import PLAIN, shape_of

SHAPE = shape_of("v1", "Pod") or PLAIN
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"a": "1"}},
    "spec": {
        "containers": [
            {"name": "a", "image": "x:1", "env": [{"name": "E", "value": "1"}]},
            {"name": "b", "image": "y:2"},
        ]
    },
}


def _containers(*elements: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(elements)}}


@pytest.mark.parametrize(
    ("patch", "wanted"),
    [
        ({"metadata": {"labels": {"+(a)": "2", "b": "3"}}}, {"a": "1", "b": "3"}),
        ({"metadata": {"labels": {"+(a)": "2"}}}, {"a": "1"}),
        ({"metadata": {"labels": {"a": None}}}, {}),
        ({"metadata": {"labels": {"a": 2}}}, {"a": "2"}),
        ({"metadata": {"(name)": "w*", "labels": {"b": "3"}}}, {"a": "1", "b": "3"}),
        ({"metadata": {"(name)": "x*", "labels": {"b": "3"}}}, {"a": "1"}),
        ({"metadata": {"<(name)": "x*", "labels": {"b": "3"}}}, {"a": "1"}),
        ({"metadata": {"labels": {"b": "{{ one }}"}}}, {"a": "1", "b": "ONE"}),
        ({"metadata": {"(name)": "{{ web }}", "labels": {"a": "2"}}}, {"a": "2"}),
    ],
)
def test_maps(patch: Any, wanted: Any) -> None:
    leaves = link_leaves(parse_document(patch))
    assert leaves is not None
    linked = link_merge(leaves.shape, SHAPE)
    assert linked is not None
    values = ["web" if "web" in repr(patch) else "ONE"]
    assert linked.apply(POD, values)["metadata"]["labels"] == wanted


@pytest.mark.parametrize(
    ("patch", "spec"),
    [
        ({"spec": {"securityContext": {}}}, {"securityContext": {}}),
        ({"spec": {"+(securityContext)": {}}}, {"securityContext": {}}),
        (
            {"spec": {"affinity": {"podAffinity": {}}}},
            {"affinity": {"podAffinity": {}}},
        ),
        (
            {"spec": {"volumes": [{"name": "t", "emptyDir": {}}]}},
            {"volumes": [{"name": "t", "emptyDir": {}}]},
        ),
        ({"spec": {"m": {"(a)": {}}}}, {}),
    ],
)
def test_empty_maps_of_a_patch_are_added(patch: Any, spec: Any) -> None:
    linked = link_merge(patch, SHAPE)
    assert linked is not None
    assert linked.apply(POD, ())["spec"] == {**POD["spec"], **spec}
    again = linked.apply(POD, ())
    assert linked.apply(again, ()) is again


@pytest.mark.parametrize(
    ("element", "wanted"),
    [
        ({"(name)": "*", "p": 1}, [("a", 1), ("b", 1)]),
        # Elements that the patch names come first.
        ({"(image)": "*:2", "p": 1}, [("b", 1), ("a", None)]),
        ({"(image)": "*:9", "p": 1}, [("a", None), ("b", None)]),
        # The first container lacks the field, so +() is removed for the second one,
        # too.
        ({"(name)": "*", "+(p)": 1}, [("a", 1), ("b", 1)]),
        ({"name": "b", "p": 1}, [("b", 1), ("a", None)]),
        ({"name": "new", "p": 1}, [("new", 1), ("a", None), ("b", None)]),
    ],
)
def test_elements(element: Any, wanted: Any) -> None:
    linked = link_merge(_containers(element), SHAPE)
    assert linked is not None
    found = linked.apply(POD, ())["spec"]["containers"]
    assert [(each["name"], each.get("p")) for each in found] == wanted


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"$patch": "replace"}},
        _containers({"$patch": "delete", "name": "a"}),
        _containers({"(name)": "a", "p": 1}, {"(name)": "b", "p": 1}),
        _containers({"<(name)": "a", "p": 1}),
        _containers({"(name)": "*", "s": {"(p)": 1}}),
        _containers({"(name)": "*", "env": [{"(name)": "E", "value": "2"}]}),
        {"spec": {"tolerations": [{"(key)": "a", "operator": "Exists"}]}},
        {"metadata": {"(labels)": {"+(b)": "1"}}},
        {"metadata": {"labels": {"+(b)": "1", "b": "2"}}},
        {"(metadata)": {"name": "web"}, "spec": {"a": 1}},
        {"metadata": {"labels": {"+(b)": None}}},
        ["no map"],
    ],
)
def test_rare_patches_use_the_general_merge(patch: Any) -> None:
    assert link_merge(patch, SHAPE) is None


@pytest.mark.parametrize(
    ("patch", "changed"),
    [
        (_containers({"(name)": "*", "p": 1}), [{"name": "a"}, {"name": "a"}]),
        (_containers({"(name)": "*", "p": 1}), [{"image": "x"}]),
        (_containers({"name": "a", "p": 1}), [{"name": 1}]),
        (_containers({"name": "a", "p": 1}), "no list"),
        (_containers({"name": "a", "p": 1}), None),
        ({"spec": {"containers": {"p": 1}}}, []),
        ({"spec": {"containers": 1}}, []),
    ],
)
def test_unusual_objects_use_the_general_merge(patch: Any, changed: Any) -> None:
    linked = link_merge(patch, SHAPE)
    assert linked is not None
    with pytest.raises((Unfit, ExpressionFailed)):
        linked.apply({**POD, "spec": {"containers": changed}}, ())


@pytest.mark.parametrize("value", [None, 1.5, {}, [], "(a)"])
def test_unusual_values_use_the_general_merge(value: Any) -> None:
    leaves = link_leaves(parse_document({"metadata": {"labels": {"b": "{{ one }}"}}}))
    assert leaves is not None
    linked = link_merge(leaves.shape, SHAPE)
    assert linked is not None
    with pytest.raises(Unfit):
        linked.apply(POD, [value])


def test_equal_parts_are_not_copied() -> None:
    patch = {
        "metadata": {"labels": {"a": 1}},
        **_containers({"name": "a", "env": [{"name": "E", "value": 1}]}),
    }
    linked = link_merge(patch, SHAPE)
    assert linked is not None
    assert linked.apply(POD, ()) is POD
