"""Permissions of the own account: lists of rules, single reviews, what is cached."""

from collections.abc import Iterator
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest

from kyverno_mp.kube.own_access import OwnAccess
from kyverno_mp.kube.resource import Resource, core
from tests.unit.kube.fake_api import EVERYTHING, FakeApi
from tests.unit.queues.turned_clock import TurnedClock

Json = Any
PODS = core("pods")
DEPLOYMENTS = Resource(group="apps", version="v1", plural="deployments")
LISTS = "selfsubjectrulesreviews"
REVIEWS = "selfsubjectaccessreviews"
RULES: list[Json] = [
    EVERYTHING,
    {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
    {"verbs": ["*"], "apiGroups": ["apps"], "resources": ["*"]},
    {"verbs": ["delete"], "apiGroups": ["*"], "resources": ["pods", "deployments"]},
    {
        "verbs": ["delete", "list"],
        "apiGroups": [""],
        "resources": ["pods"],
        "resourceNames": ["one"],
    },
    {"verbs": ["list"], "apiGroups": [""], "resources": ["pods/log"]},
]
QUESTIONS = list(
    product(
        ("list", "delete"), (PODS, DEPLOYMENTS), ("", "a", "b"), ("", "one", "other")
    )
)


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


def sets_of_grants() -> Iterator[list[tuple[str, Json]]]:
    grants = list(product(("", "a"), RULES))
    for size in range(3):
        yield from map(list, combinations(grants, size))


def test_lists_answer_as_the_authorizer_does(api: FakeApi, clock: TurnedClock) -> None:
    """Otherwise, objects would stay although the account may delete them."""
    client = api.client()
    for grants in sets_of_grants():
        api.grants = grants
        access = OwnAccess(client, clock.clock.monotonic_s)
        before = len(api.requests)
        for verb, resource, namespace, name in QUESTIONS:
            asked = {
                "verb": verb,
                "group": resource.group,
                "resource": resource.plural,
                "namespace": namespace,
                "name": name,
            }
            answer = access.allows(verb, resource, namespace, name)
            assert answer == api.is_granted(asked), (grants, asked)
        # Of the cluster and of two namespaces.
        assert len(api.requests) - before <= 3
    assert api.count(REVIEWS) == 0


def test_an_authorizer_without_a_list_is_asked(
    api: FakeApi, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may deny what the rules of others allow."""
    everything = {"resourceRules": [EVERYTHING], "incomplete": True}
    monkeypatch.setattr(api, "rules_in", lambda _namespace: everything)
    api.may = lambda asked: asked.get("namespace") == "a"
    access = OwnAccess(api.client(), clock.clock.monotonic_s)
    for _ in range(2):
        assert not access.allows("list", PODS)
        assert access.allows("list", PODS, "a")
        assert not access.allows("list", PODS, "b")
    assert (api.count(LISTS), api.count(REVIEWS)) == (1, 3)


def test_without_the_right_to_list_rules_questions_are_single(
    api: FakeApi, clock: TurnedClock
) -> None:
    """Otherwise, the clean-up would stop although it may ask."""
    api.fault(LISTS, 403)
    access = OwnAccess(api.client(), clock.clock.monotonic_s)
    assert access.allows("list", PODS)
    assert api.count(REVIEWS) == 1


@pytest.mark.parametrize("lists", [True, False])
def test_a_change_is_known_after_the_time_of_the_cache(
    api: FakeApi, clock: TurnedClock, *, lists: bool
) -> None:
    if not lists:
        api.may = partial(FakeApi.is_granted, api)
    api.grants = [("a", EVERYTHING)]
    access = OwnAccess(api.client(), clock.clock.monotonic_s, cached_s=5)
    assert access.allows("list", PODS, "a")
    assert not access.allows("list", PODS)
    api.grants = [("", EVERYTHING)]
    clock.turn(5)
    assert access.allows("list", PODS)
    api.grants = []
    clock.turn(5)
    assert not access.allows("list", PODS, "a")


@pytest.mark.parametrize("lists", [True, False])
def test_an_answer_from_before_a_grant_is_not_kept(
    api: FakeApi, clock: TurnedClock, *, lists: bool
) -> None:
    """Otherwise, a kind would not be watched until the grants change again."""
    access = OwnAccess(api.client(), clock.clock.monotonic_s)
    api.grants = []

    def forget(_method: str, target: str) -> None:
        if (LISTS if lists else REVIEWS) in target:
            # The grant arrives, and the watches are refreshed for it.
            api.on_request = lambda _method, _target: None
            access.forget()

    if not lists:
        api.may = partial(FakeApi.is_granted, api)
    api.on_request = forget
    assert not access.allows("list", PODS)
    api.grants = [("", EVERYTHING)]
    assert access.allows("list", PODS)
    asked = len(api.requests)
    assert access.allows("list", PODS)
    assert len(api.requests) == asked
