"""Test the compiled match and exclude blocks (docs/behaviour/engine 1.1)."""

import pytest

from kyverno_mp.compiler.rules.match import (
    build_exception_match,
    build_exclude,
    build_match,
)
from kyverno_mp.ir.match import (
    FilterIR,
    KindIR,
    MatchIR,
    SelectorIR,
    SelectorTermIR,
    SubjectIR,
)
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.values.jsonvalue import Json
from tests.blocks import exclude_of, filters_of, match_of

POD = FilterIR(kinds=(KindIR("*", "*", "Pod", "", "Pod"),))
POD_RAW = {"resources": {"kinds": ["Pod"]}}
NAMED = FilterIR(names=("a",))
NAMED_RAW = {"resources": {"names": ["a"]}}


def test_any_has_precedence_over_all_and_all_over_legacy() -> None:
    """Kyverno uses the first form that is not empty."""
    both = {"any": [POD_RAW], "all": [NAMED_RAW], **NAMED_RAW}
    assert MatchIR("any", (POD,)) == build_match(match_of(both))
    assert MatchIR("all", (NAMED,)) == build_match(match_of({**both, "any": []}))
    assert MatchIR("all", (NAMED,)) == build_match(match_of(NAMED_RAW))
    assert MatchIR("all", (FilterIR(),)) == build_match(match_of({}))


def test_empty_exclude_is_none() -> None:
    """An exclude block without criteria excludes nothing."""
    empties: list[Json] = [None, {}, {"any": [], "all": None}, {"resources": {}}]
    for document in empties:
        assert build_exclude(exclude_of(document)) is None
    assert MatchIR("any", (POD,)) == build_exclude(exclude_of(POD_RAW))
    assert MatchIR("all", (POD, FilterIR())) == build_exclude(
        exclude_of({"all": [POD_RAW, {}]})
    )


def test_exceptions_have_no_legacy_form() -> None:
    """A PolicyException without ``any`` and ``all`` matches nothing."""
    assert MatchIR("any", ()) == build_exception_match(filters_of({}))
    some = filters_of({"any": [POD_RAW]})
    assert MatchIR("any", (POD,)) == build_exception_match(some)
    with pytest.raises(DocumentInvalid, match="resources"):
        filters_of(POD_RAW)


def test_every_criterion_is_read() -> None:
    """A criterion that is not read would make the rule apply to more objects."""
    document = {
        "resources": {
            "kinds": ["apps/v1/Deployment"],
            "name": "n",
            "namespaces": ["ns-*"],
            "annotations": {"b": "2", "a": "1"},
            "operations": ["CREATE"],
            "selector": {
                "matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}],
            },
            "namespaceSelector": {"matchExpressions": [{"key": "k", "operator": "X"}]},
        },
        "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "ns"}],
        "roles": ["ns:role"],
        "clusterRoles": ["admin"],
    }
    expected = FilterIR(
        kinds=(KindIR("apps", "v1", "Deployment", "", "apps/v1/Deployment"),),
        name="n",
        namespaces=("ns-*",),
        annotations=(("a", "1"), ("b", "2")),
        operations=("CREATE",),
        selector=SelectorIR((("app", "web"),), (SelectorTermIR("k", "In", ("v",)),)),
        namespace_selector=SelectorIR(
            (),
            (SelectorTermIR("k", "X"),),
            '"X" is not a valid label selector operator',
        ),
        subjects=(SubjectIR("ServiceAccount", "sa", "ns"),),
        roles=("ns:role",),
        cluster_roles=("admin",),
    )
    assert MatchIR("any", (expected,)) == build_match(match_of({"any": [document]}))
