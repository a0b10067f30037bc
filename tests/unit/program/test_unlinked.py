"""A rule that cannot be linked is an error, and an internal error does not stay.

A failure means: one error inside Python makes a policy deny every request, or allow
them, until the next change of any policy.
"""

from unittest.mock import patch

import pytest

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.limits import RELINKING_REVIEWS_MAX
from kyverno_mp.program.bodies import deny
from tests.fuzz.bench import Bench, pod
from tests.unit.webhook.attach.test_garbage import cluster_policy

DENIES = """validate: {message: denied, deny: {conditions: {all: [{
    key: '{{ request.object.spec.hostNetwork || `false` }}',
    operator: Equals, value: true}]}}}"""


class Linking:
    """Ends in an error the first ``failures`` times."""

    def __init__(self, failures: int, error: type[Exception] = SystemError) -> None:
        self.failures, self.error, self.count = failures, error, 0

    def __call__(self, conditions: object) -> object:
        self.count += 1
        if self.count <= self.failures:
            raise (
                self.error("test.link", "m")
                if self.error is ExpressionInvalid
                else self.error("half-built tuple")
            )
        return link_conditions(conditions)  # type: ignore[arg-type]  # as it was passed


def bench(failure_policy: str = "Fail") -> tuple[Bench, bytes]:
    path = f"/validate/{failure_policy.lower()}".encode()
    return Bench(cluster_policy(DENIES, failure_policy=failure_policy)), path


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_a_single_internal_error_changes_no_answer(failure_policy: str) -> None:
    server, path = bench(failure_policy)
    with patch.object(deny, "link_conditions", Linking(1)) as linking:
        assert server.ask(pod(), path)["allowed"]
        assert not server.ask(pod(hostNetwork=True), path)["allowed"]
        assert server.ask(pod(), path)["allowed"]
    assert linking.count == 2
    assert not server.records.errors


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_failure_policy_decides_until_the_rule_is_linked(failure_policy: str) -> None:
    server, path = bench(failure_policy)
    with patch.object(deny, "link_conditions", Linking(2)):
        answer = server.ask(pod(hostNetwork=True), path)
        assert answer["allowed"] is (failure_policy == "Ignore")
        assert server.records.errors == ["webhook.defect"]
        # The next review links it.
        assert not server.ask(pod(hostNetwork=True), path)["allowed"]
        assert server.ask(pod(), path)["allowed"]


def test_attempts_become_rare() -> None:
    """Otherwise each review of a tenant's broken policy takes as long as linking it."""
    server, path = bench()
    with patch.object(deny, "link_conditions", Linking(10**6)) as linking:
        for _ in range(4 * RELINKING_REVIEWS_MAX):
            assert not server.ask(pod(), path)["allowed"]
    assert linking.count == 1 + 14
    assert server.records.errors.count("webhook.defect") == 14
    assert set(server.records.errors) == {"webhook.defect", "program.unlinked"}


def test_rule_that_this_version_cannot_evaluate_stays_an_error() -> None:
    server, path = bench()
    with patch.object(
        deny, "link_conditions", Linking(9, ExpressionInvalid)
    ) as linking:
        for _ in range(3):
            answer = server.ask(pod(), path)
            assert not answer["allowed"]
            assert "not evaluated by this version" in answer["status"]["message"]
    assert linking.count == 1
