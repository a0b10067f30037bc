"""Every change of an object that has a meaning differs from its signed manifest.

A failure means: an object with an added rule, container or permission is admitted as
signed, or an object is denied although the API server reads it like the signed one.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from kyverno_mp.images.manifests.compare import differences

_DIGEST = f"@sha256:{'a' * 64}"
NETWORK: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny"},
    "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]},
}
OWN: dict[str, Any] = {
    "apiVersion": "example.org/v1",
    "kind": "AccessRule",
    "metadata": {"name": "a"},
    "spec": {"rules": [{"paths": ["/a"], "from": {"zones": []}}]},
}


def _with(value: Any, *path: Any, of: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(of)
    place: Any = made
    for name in path[:-1]:
        place = place[name]
    if path[-1] == "+":
        place.append(value)
    else:
        place[path[-1]] = value
    return made


def _lists(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    if type(value) is list:
        yield path
    items: Any = ()
    if type(value) is dict:
        items = value.items()
    elif type(value) is list:
        items = enumerate(value)
    for name, child in items:
        yield from _lists(child, *path, name)


@pytest.mark.parametrize("document", [NETWORK, OWN], ids=["built-in", "custom"])
@pytest.mark.parametrize(
    "added",
    [
        None,
        "",
        {},
        [],
        [{}],
        {"from": None},
        {"from": ""},
        {"a": {"b": None}},
        {"labels": {}},
        {"metadata": {"labels": {}}},
        {"resources": {}, "securityContext": {}},
    ],
)
def test_each_added_element_is_a_change(document: dict[str, Any], added: Any) -> None:
    """An empty rule allows everything, whichever way it is written."""
    for path in _lists(document):
        made = _with(added, *path, "+", of=document)
        for found in (differences(document, made, ()), differences(made, document, ())):
            assert found, path


@pytest.mark.parametrize("nothing", [{}, {"all": None}, {"a": {"all": None}}])
def test_an_added_map_without_values_is_a_change(nothing: Any) -> None:
    made = _with(nothing, "spec", "allow", of=OWN)
    (found,) = differences(OWN, made, ())
    assert found.key.startswith("spec.allow")
    assert (found.before, found.after) == (None, {})


@pytest.mark.parametrize("document", [NETWORK, OWN], ids=["built-in", "custom"])
def test_a_null_equals_an_absent_field_only(document: dict[str, Any]) -> None:
    """Webhooks that are written in Go add nulls, such as a template's creation time."""
    null = _with(None, "spec", "other", of=document)
    assert not differences(document, null, ())
    assert not differences(null, document, ())
    values: tuple[Any, ...] = (False, 0, "x", [1])
    for value in values:
        given = _with(value, "spec", "other", of=document)
        assert differences(given, null, ())
        assert differences(null, given, ())


@pytest.mark.parametrize("other", [{}, {"labels": {}}, {"a": None}])
def test_a_list_never_equals_a_map(other: Any) -> None:
    zones = ("spec", "rules", 0, "from", "zones")
    made = _with(other, *zones, of=OWN)
    assert differences(OWN, made, ())
    assert differences(made, OWN, ())


@pytest.mark.parametrize("name", ["labels", "annotations"])
def test_maps_outside_of_metadata_are_not_added_by_the_api_server(name: str) -> None:
    """A selector for all labels selects everything."""
    made = _with({}, "spec", name, of=OWN)
    assert [one.key for one in differences(OWN, made, ())] == [f"spec.{name}"]
    made = _with({name: {}}, "spec", "rules", 0, "from", "metadata", of=OWN)
    assert not differences(OWN, made, ())
    made = _with({"x": {name: {}}}, "spec", "metadata", of=OWN)
    assert differences(OWN, made, ())


def test_maps_that_the_api_server_adds() -> None:
    containers = [{"name": "a"}]
    spec = {"template": {"spec": {"containers": containers}}}
    before = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec}
    after = copy.deepcopy(before)
    after["metadata"] = {"labels": {}, "annotations": {}}
    added: Any = after["spec"]
    added["strategy"] = {}
    added["template"]["metadata"] = {"creationTimestamp": None}
    added["template"]["spec"]["securityContext"] = {}
    added["template"]["spec"]["containers"][0]["resources"] = {}
    assert not differences(before, after, ())
    assert not differences(after, before, ())


def _pod(spec: dict[str, Any], kind: str = "v1/Pod") -> dict[str, Any]:
    api_version, _, name = kind.rpartition("/")
    return {"apiVersion": api_version, "kind": name, "spec": spec}


@pytest.mark.parametrize("name", ["tolerations", "volumes", "nodeSelector"])
def test_an_empty_list_that_the_api_server_drops_is_no_change(name: str) -> None:
    """Templates write them, and the API server stores built-in kinds without them."""
    empty: Any = {} if name == "nodeSelector" else []
    spec = {"containers": [{"name": "a", "resources": {}}]}
    full = {**spec, name: empty}
    assert not differences(_pod(full), _pod(spec), ())
    # The API server sends none, so others have added it.
    assert differences(_pod(spec), _pod(full), ())
    own = "example.org/v1/Own"
    assert differences(_pod(full, own), _pod(spec, own), ())


@pytest.mark.parametrize(
    ("signed", "given"),
    [
        ([{"from": []}], []),
        ([{"from": [{"podSelector": {}}]}], [{"from": [{}]}]),
        ([{"ports": []}, {"from": []}], [{}]),
        ([{"from": [{"podSelector": {"matchLabels": {}}}]}], [{"from": [{}]}]),
    ],
)
def test_what_contains_dropped_values_is_not_dropped(signed: Any, given: Any) -> None:
    before = _with(signed, "spec", "ingress", of=NETWORK)
    assert differences(before, _with(given, "spec", "ingress", of=NETWORK), ())


def test_an_empty_list_in_content_without_type_is_kept() -> None:
    revision = {"apiVersion": "apps/v1", "kind": "ControllerRevision"}
    before = {**revision, "data": {"spec": {"a": []}}}
    assert differences(before, {**revision, "data": {"spec": {}}}, ())


def test_an_added_empty_list_is_a_change() -> None:
    """The API server adds empty maps, but no empty lists."""
    made = _with([], "spec", "resources", of=OWN)
    assert [one.key for one in differences(OWN, made, ())] == ["spec.resources"]


@pytest.mark.parametrize(
    ("signed", "read"),
    [
        ({"emptyDir": {"medium": ""}}, {"emptyDir": {}}),
        ({"affinity": {"nodeAffinity": None}}, {"affinity": {}}),
        (
            {"affinity": {"nodeAffinity": {"a": None}}},
            {"affinity": {"nodeAffinity": {}}},
        ),
        ({}, {"securityContext": {"runAsUser": None}}),
    ],
)
def test_a_map_is_equal_after_the_api_server_has_dropped_its_fields(
    signed: dict[str, Any], read: dict[str, Any]
) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod"}
    before, after = {**pod, "spec": signed}, {**pod, "spec": read}
    assert not differences(before, after, ())
    assert not differences(after, before, ())


@pytest.mark.parametrize(
    ("signed", "given", "is_equal"),
    [
        ("nginx", "docker.io/nginx", True),
        ("acme/nginx:1", "docker.io/acme/nginx:1", True),
        ("nginx", "nginx:latest", True),
        ("localhost:5000/nginx", "localhost:5000/nginx:latest", True),
        # SAFETY: repositories of the default registry, not of the signed one.
        ("registry.example/acme/app:1", "docker.io/registry.example/acme/app:1", False),
        ("localhost/app", "docker.io/localhost/app", False),
        ("Registry/app", "docker.io/Registry/app", False),
        ("docker.io/app", "docker.io/docker.io/app", False),
        ("nginx:1", "nginx:1:latest", False),
        (f"nginx{_DIGEST}", f"nginx{_DIGEST}:latest", False),
    ],
)
def test_only_the_default_registry_and_tag_are_added_to_an_image(
    signed: str, given: str, *, is_equal: bool
) -> None:
    def pod(image: str) -> dict[str, Any]:
        spec = {"containers": [{"name": "a", "image": image}]}
        return {"apiVersion": "v1", "kind": "Pod", "spec": spec}

    assert bool(differences(pod(signed), pod(given), ())) is not is_equal
