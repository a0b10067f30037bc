"""A pool asks who wrote a policy before it carries it out, and once an hour after.

A failure means: a pool lends its permissions to an author who has lost them, or asks
the API server for each object.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kyverno_mp.egress.author_rights import AUTHOR, recorded
from kyverno_mp.egress.stored_authors import StoredAuthors
from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.policy.ports import Author, BuiltInKinds
from tests.unit.kube.fake_api import FakeApi, running

CLEANUPS = Resource(group="kyverno.io", version="v2", plural="cleanuppolicies")
CLUSTER = Resource(
    group="kyverno.io", version="v2", plural="clustercleanuppolicies", namespaced=False
)
PATH = "/apis/kyverno.io/v2/namespaces/team/cleanuppolicies/p"
KEY = ("team", "p")
POLICY: dict[str, Any] = {
    "apiVersion": "kyverno.io/v2",
    "kind": "CleanupPolicy",
    "spec": {
        "match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]},
        "schedule": "0 * * * *",
    },
}


class Rig:
    """Grants of authors, the time, and how often the API server was asked."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.may = True
        self.is_up = True
        self.asked = 0
        self.now_s = 0.0
        self.authors = StoredAuthors(
            Objects(api.client()), BuiltInKinds(), self, lambda: self.now_s
        )

    def author_may(
        self, author: Author, attributes: Mapping[str, str], deadline_ns: int
    ) -> bool:
        assert attributes["namespace"] == "team"
        assert deadline_ns
        assert author.name == "eve"
        if not self.is_up:
            raise KubeUnavailable("t", "the API server does not answer")
        self.asked += 1
        return self.may

    def store(self, author: str = "eve") -> None:
        value = recorded(Author(author)) if author else None
        annotations = {AUTHOR: value} if value else {}
        self.api.put(PATH, **POLICY, metadata={"annotations": annotations})

    def reason(self) -> str:
        return self.authors.reason(CLEANUPS, KEY)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running() as api:
        yield Rig(api)


def test_verdict_holds_an_hour(rig: Rig) -> None:
    rig.store()
    assert rig.reason() == ""
    asked = rig.asked
    assert asked > 0
    rig.may = False
    rig.now_s = 3599
    assert rig.reason() == ""
    assert rig.asked == asked
    rig.now_s = 3601
    assert "eve requires permissions list,delete for resource configmaps" in (
        rig.reason()
    )


def test_refusal_ends_soon_after_the_right_returns(rig: Rig) -> None:
    rig.store()
    rig.may = False
    assert rig.reason()
    rig.may = True
    rig.now_s = 61
    assert rig.reason() == ""


@pytest.mark.parametrize("author", [None, ""])
def test_nobody_is_asked_about_an_unknown_author(rig: Rig, author: str | None) -> None:
    if author is not None:
        rig.store(author)
    rig.may = False
    assert rig.reason() == ""
    assert rig.asked == 0


def test_cluster_policies_have_no_author(rig: Rig) -> None:
    assert rig.authors.reason(CLUSTER, ("", "p")) == ""
    assert rig.api.requests == []


@pytest.mark.parametrize("may", [True, False])
def test_last_verdict_holds_while_nobody_answers(
    rig: Rig,
    may: bool,  # noqa: FBT001
) -> None:
    rig.store()
    rig.may = may
    before = rig.reason()
    rig.is_up = False
    rig.now_s = 4000
    assert rig.reason() == before
    assert bool(before) is not may
