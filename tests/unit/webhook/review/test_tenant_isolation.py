"""A tenant's policy neither bypasses other policies' denials nor delays requests.

Each is evaluated on a path that ignores failures: if the whole evaluation fails there,
the request is allowed.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from kyverno_mp.errors import Preempted
from kyverno_mp.expr import scope as scope_module
from kyverno_mp.expr.reads import Reads, cutter
from kyverno_mp.ir.rules import RuleIR
from kyverno_mp.program import rule as rule_module
from kyverno_mp.program.rule_reads import rule_reads
from kyverno_mp.program.validating_policy import exceptions
from kyverno_mp.webhook.review import service as service_module
from kyverno_mp.webhook.review.lanes import LateAnswer
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import route_of
from tests.fuzz.bench import Bench
from tests.unit.webhook.cel import (
    test_cel_policies,
    test_generating_policies,
    test_mutating_policies,
)
from tests.unit.webhook.cel.test_cel_policies import PODS, compiled, review
from tests.unit.webhook.images import test_image_policies
from tests.yardstick import cpu_s

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
CUT_S_MAX = 0.2
"""When each name was looked up separately, this took ten times as long."""
Steps = Callable[[int], str]


def classic(name: str, namespace: str, validate: dict[str, Any]) -> str:
    place = {"namespace": namespace} if namespace else {}
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "validate": validate,
    }
    return json.dumps(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "Policy" if namespace else "ClusterPolicy",
            "metadata": {"name": name, **place},
            "spec": {
                "validationFailureAction": "Enforce",
                "failurePolicy": "Ignore",
                "background": False,
                "rules": [rule],
            },
        }
    )


NO_LABEL = {"message": "no app", "pattern": {"metadata": {"labels": {"app": "?*"}}}}
ADMIN = classic("admin", "", NO_LABEL)


def chain(first: str, each: Steps, count: int) -> list[dict[str, str]]:
    """Return variables, each of which refers to the previous one."""
    texts = [first, *(each(number) for number in range(count - 1))]
    return [{"name": f"v{n}", "expression": text} for n, text in enumerate(texts)]


CHAINS = {
    "sums": chain("object.metadata.name", lambda n: f"variables.v{n} + 'a'", 900),
    "maps": chain("object.spec.xs", lambda n: f"variables.v{n}.map(x, [x])", 300),
    "choices": chain(
        "object.spec", lambda n: f"variables.v{n}.a ? variables.v{n}.b : 1", 300
    ),
    "deep fields": chain("object.spec", lambda n: f"variables.v{n}" + ".a" * 180, 40),
    "each of each": chain(
        "object.spec.xs", lambda n: f"variables.v{n}" + ".map(x, x)" * 30, 45
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_variable_chain_affects_only_its_policy(name: str) -> None:
    variables = CHAINS[name]
    cel = {
        "variables": variables,
        "expressions": [{"expression": f"variables.{variables[-1]['name']} != null"}],
    }
    bench = Bench(ADMIN + "\n---\n" + classic("heavy", "default", {"cel": cel}))
    for _ in range(2):
        answer = bench.ask(POD, b"/validate/ignore")
        assert not answer["allowed"]
        assert "no app" in answer["status"]["message"]
    assert "webhook.defect" not in bench.records.errors


@pytest.mark.parametrize("name", CHAINS)
def test_variable_chain_fails_one_cel_policy(name: str, tmp_path: Path) -> None:
    variables = CHAINS[name]
    heavy = test_cel_policies.policy(
        "heavy",
        {"expression": f"variables.{variables[-1]['name']} != null"},
        variables=variables,
        validationActions=["Audit"],
        namespace="a",
    )
    admins = test_cel_policies.policy("admin", namespace="a")
    server = test_cel_policies.Server(compiled(heavy, admins), tmp_path)
    answer = server.ask("/nvpol")
    assert not answer["allowed"]
    assert answer["status"]["message"] == "Policy admin failed: no team"
    assert not server.records.errors


def test_unlinkable_rule_is_an_error_of_its_policy() -> None:
    """This holds for any reason, including reasons that are not known yet."""

    def broken(rule: RuleIR) -> Any:
        if rule.validate is not None and rule.validate.deny is not None:
            raise KeyError(rule.name)
        return rule_reads(rule)

    deny = {"message": "m", "deny": {"conditions": {"all": []}}}
    with patch.object(rule_module, "rule_reads", broken):
        bench = Bench(ADMIN + "\n---\n" + classic("heavy", "default", deny))
        answer = bench.ask(POD, b"/validate/ignore")
    assert not answer["allowed"]
    assert "no app" in answer["status"]["message"]


SELECTOR: dict[str, Any] = {
    "objectSelector": {
        "matchExpressions": [
            {
                "key": f"l{number}",
                "operator": "NotIn",
                "values": [f"w{each}" for each in range(100)],
            }
            for number in range(30)
        ]
        + [{"key": "none", "operator": "Exists"}]
    }
}
"""Matches nothing in about 0.15 ms: no slice is requested after matching."""
NAMES: dict[str, Any] = {
    "resourceRules": [
        {**PODS, "resourceNames": [f"n{number}-{each}" for each in range(20)]}
        for number in range(100)
    ]
}
EXCLUDED: dict[str, Any] = {
    "excludeResourceRules": [
        {**PODS, "resourceNames": [f"n{number}-{each}" for each in range(20)]}
        for number in range(100)
    ]
}


class EndedPace:
    """A slice that has ended: the first check stops the review. 0 means no slice."""

    slice_ends_ns = 1

    def __init__(self, *_: Any) -> None:
        pass

    def next_slice(self, now_ns: int) -> None:
        if now_ns >= self.slice_ends_ns:
            self.make_room()

    def make_room(self) -> NoReturn:
        raise Preempted("webhook.preempted", "the review takes long")


class Lane:
    """A lane that counts the reviews that leave the event loop, and evaluates them."""

    def __init__(self) -> None:
        self.ran = 0

    def run(self, work: Callable[[Any], bytes], *_: Any) -> LateAnswer:
        self.ran += 1
        answer = LateAnswer(asyncio.get_running_loop())
        answer.ended.set_result(None)
        answer.set_result(work(None))
        return answer


def _asked(service: Service, path: str) -> tuple[bytes, Lane, Lane]:
    """Send requests until all is linked; return the answer and who gave it.

    Then the lane that plans, and the lane for images.
    """
    route = route_of(path.encode())
    assert route is not None

    async def ask() -> tuple[bytes, Lane, Lane]:
        answer: Any = b""
        for _ in range(2):
            lane, images = Lane(), Lane()
            dependencies = service._dependencies
            for name in ("long_lane", "slow_lane"):
                object.__setattr__(dependencies, name, lane)
            object.__setattr__(dependencies, "image_lane", images)
            with patch.object(service_module, "EventLoopPace", EndedPace):
                answer = service.answer(route, b"", review())
            answer = answer if type(answer) is bytes else await answer
        return answer, lane, images

    return asyncio.run(ask())


def _validating(constraints: dict[str, Any], count: int, folder: Path) -> Service:
    documents = [
        _of(test_cel_policies.policy(f"v{n}", namespace="a"), constraints)
        for n in range(count)
    ]
    return test_cel_policies.Server(compiled(*documents), folder).service


def _mutating(constraints: dict[str, Any], count: int, folder: Path) -> Service:
    documents = [
        _of(test_mutating_policies.policy(f"v{n}", namespace="a"), constraints)
        for n in range(count)
    ]
    return test_mutating_policies.Server(compiled(*documents), folder).service


def _generating(constraints: dict[str, Any], count: int, folder: Path) -> Service:
    documents = [
        _of(test_generating_policies.policy(f"v{n}", namespace="a"), constraints)
        for n in range(count)
    ]
    found = compiled(*documents, has_background=True)
    return test_generating_policies.Server(found, folder).service


def _images(constraints: dict[str, Any], count: int, folder: Path) -> Service:
    documents = [
        _of(test_image_policies.policy(f"v{n}", namespace="a"), constraints)
        for n in range(count)
    ]
    return test_image_policies.Server(compiled(*documents), folder, None).service


def _of(document: dict[str, Any], constraints: dict[str, Any]) -> dict[str, Any]:
    document["spec"]["matchConstraints"] |= constraints
    return document


KINDS: dict[str, Callable[[dict[str, Any], int, Path], Service]] = {
    "/nvpol": _validating,
    "/nmpol": _mutating,
    "/ngpol": _generating,
    "/nivpol/validate": _images,
}
GIVEN: dict[str, dict[str, Any]] = {
    "selectors": SELECTOR,
    "names": NAMES,
    "excluded": EXCLUDED,
}


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("given", GIVEN)
def test_matching_many_entries_leaves_the_event_loop(
    path: str, given: str, tmp_path: Path
) -> None:
    """A failure means: 300 policies of one namespace block all reviews for 100 ms."""
    answer, lane, images = _asked(KINDS[path](GIVEN[given], 40, tmp_path), path)
    assert lane.ran == 1
    # SAFETY: only the threads for images wait for registries.
    assert images.ran == (path == "/nivpol/validate")
    assert type(json.loads(answer)["response"]["allowed"]) is bool
    few: dict[str, Any] = {"resourceRules": [{**PODS, "resourceNames": ["n"]}]}
    folder = tmp_path / "few"
    folder.mkdir()
    _, lane, _ = _asked(KINDS[path](few, 1, folder), path)
    assert not lane.ran, "one small policy is matched in the event loop"


HEAVY = {
    "steps": "object.spec.xs.all(x, object.spec.xs.all(y, x == y))",
    "bytes": "object.spec.xs.all(x, (object.spec.t + object.spec.t).size() > 0)",
}


@pytest.mark.parametrize("name", HEAVY)
def test_exceptions_use_no_budget_of_their_policy(name: str, tmp_path: Path) -> None:
    """A failure means: an exception in one namespace makes a policy deny everything."""
    condition = {"name": "heavy", "expression": HEAVY[name]}
    exceptions = [
        test_cel_policies.exception("team", "b", matchConditions=[condition])
        for _ in range(300)
    ]
    for number, one in enumerate(exceptions):
        one["metadata"]["name"] = f"x{number}"
    builds = {"expression": "(object.metadata.name + 'a').size() > 0"}
    found = compiled(test_cel_policies.policy("team", builds), *exceptions)
    server = test_cel_policies.Server(found, tmp_path)
    given = {
        **POD,
        "spec": {"xs": ["a"] * 2_000, "t": "t" * 100_000},
    }
    assert server.ask("/vpol/team", object=given)["allowed"]
    assert set(server.records.errors) == {"cel.exception"}


LABELS = "object.metadata.labels"
WALKS = f"{LABELS}.all(a, {LABELS}.all(b, a != b + b + b)) && false"


def _labelled(kind: str, count: int) -> list[dict[str, Any]]:
    condition = {"name": "heavy", "expression": WALKS}
    found = []
    for number in range(count):
        one = test_cel_policies.exception(
            "team", "b", kind=kind, matchConditions=[condition]
        )
        one["metadata"]["name"] = f"x{number:04}"
        found.append(one)
    return found


LABELLED = {
    **POD,
    "metadata": {
        **POD["metadata"],
        "labels": {f"l{number}": "v" for number in range(50)},
    },
}


def test_many_exceptions_use_no_budget_of_their_policy(tmp_path: Path) -> None:
    """The step limit of a policy is lower here, so that few exceptions suffice."""
    holds = test_cel_policies.policy("team", {"expression": "true"})
    found = compiled(holds, *_labelled("ValidatingPolicy", 100))
    server = test_cel_policies.Server(found, tmp_path)
    with patch.object(scope_module, "POLICY_STEPS_MAX", 20_000):
        assert server.ask("/vpol/team", object=LABELLED)["allowed"]
    assert server.records.errors == ["cel.exception"]


def test_many_exceptions_do_not_block_a_mutation(tmp_path: Path) -> None:
    found = compiled(
        test_mutating_policies.policy("team"), *_labelled("MutatingPolicy", 100)
    )
    server = test_mutating_policies.Server(found, tmp_path)
    with patch.object(scope_module, "POLICY_STEPS_MAX", 20_000):
        answer = server.ask("/mpol/team", object=LABELLED)
    assert answer["allowed"]
    assert "patch" in answer


@pytest.mark.parametrize("limit", ["cost of a policy", "steps of a review"])
def test_all_exceptions_share_their_steps(limit: str, tmp_path: Path) -> None:
    """Exceptions that come after these steps are spent do not apply."""
    last = test_cel_policies.exception(
        "team", "z", matchConditions=[{"name": "c", "expression": "object != null"}]
    )
    denies = test_cel_policies.policy("team", {"expression": "false"})
    given = [denies, *_labelled("ValidatingPolicy", 20), last]
    server = test_cel_policies.Server(compiled(*given), tmp_path)
    assert server.ask("/vpol/team", object=LABELLED)["allowed"]
    lowered = (
        patch.object(exceptions, "_EXCEPTIONS_COST_MAX", 50_000)
        if limit == "cost of a policy"
        else patch.object(exceptions, "EXCEPTION_STEPS_MAX", 5_000)
    )
    with lowered:
        assert not server.ask("/vpol/team", object=LABELLED)["allowed"]


def test_lookup_time_follows_the_object_size() -> None:
    """The lookup is not charged: policies choose names, objects repeat empty maps."""
    reads = Reads()
    element = reads.field("xs").each
    for number in range(4_000):
        element.field(f"a{number}").field("b")
    cut = cutter(reads)
    assert cut is not None
    part = {"a1": {"b": 1, "c": 2}, "z": 3}
    given = {"xs": [part, *({} for _ in range(15_000))], "ys": 1}
    for _ in range(5):
        taken = cpu_s(lambda: cut(given))
        if taken < CUT_S_MAX:
            break
    else:
        pytest.fail(f"{taken} s")
    found = cut(given)
    assert found["xs"][0] == {"a1": {"b": 1}}
    assert found["xs"][1:] == [{}] * 15_000
    assert "ys" not in found
