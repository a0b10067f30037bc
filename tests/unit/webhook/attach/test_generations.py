"""Nothing in a worker refers to a replaced generation once its reviews have ended.

A failure means: a cache or a reference cycle keeps the policies of each change, and a
worker grows until it is killed.
"""

import asyncio
import dataclasses
import gc
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.result import PolicyResponse, SharedResponses
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.group import Group
from kyverno_mp.snapshot.policies import POLICIES, PolicySegment
from tests.unit.webhook.attach.test_garbage import cluster_policy, validate
from tests.unit.webhook.cel import test_cel_policies, test_mutating_policies
from tests.unit.webhook.cel.test_cel_worker import Service
from tests.waiting import wait_for

FORBIDS = "pattern: {spec: {containers: [{image: '!forbidden/*'}]}}"
NAMED = """preconditions: {all: [{key: '{{ request.object.metadata.name }}',
    operator: NotEquals, value: x}]}"""
_OURS = re.compile(r"(?:(?:named|plain|cel)-(?:labels|[0-9]+)|labels)-([0-9]+)\Z")
COUNTED = (
    PolicyIR,
    LinkedRule,
    LinkedMutation,
    LinkedMutatingPolicy,
    LinkedValidatingPolicy,
    Group,
    PolicyResponse,
    SharedResponses,
    ValidationPlanner,
    PolicySegment,
)
GENERATIONS = 4


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    folders = {}
    for name in ("journals", "triggers", "lost", "results"):
        folders[name] = tmp_path / name
        folders[name].mkdir(mode=0o700)
    made.places = dataclasses.replace(made.places, **folders)
    gc.collect()
    gc.disable()
    yield made
    gc.enable()
    made.close()


def documents(revision: int) -> list[dict[str, Any]]:
    """Return policies of several kinds; every name is different in each revision."""
    message = f"r{revision}: {{{{ request.object.metadata.name }}}}"
    text = "---\n".join(
        [
            *(
                cluster_policy(
                    f"{NAMED}, validate: {{message: '{message}', {FORBIDS}}}",
                    name=f"named-{number}-{revision}",
                )
                for number in range(3)
            ),
            *(
                cluster_policy(validate(FORBIDS), name=f"plain-{number}-{revision}")
                for number in range(20)
            ),
            cluster_policy(
                "mutate: {patchStrategicMerge: {metadata: {labels: {a: b}}}}",
                name=f"labels-{revision}",
            ),
        ]
    )
    forbidden = {
        "expression": "object.spec.containers.all(c, c.image != 'forbidden/x')",
        "message": f"r{revision}",
    }
    cel = [
        test_cel_policies.policy(f"cel-{number}-{revision}", forbidden)
        for number in range(3)
    ]
    mutating = test_mutating_policies.policy(f"cel-labels-{revision}")
    return [*yaml.safe_load_all(text), *cel, mutating]


def ask_everything(service: Service, revision: int) -> None:
    cel = "/".join(f"cel-{number}-{revision}" for number in range(3))
    shared = ["/validate/fail", "/validate/ignore", "/mutate/fail"]
    for path in (*shared, f"/vpol/{cel}", f"/mpol/cel-labels-{revision}"):
        for name, image in (("a", "i"), ("a", "i"), ("b", "forbidden/x"), ("a", "i")):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"containers": [{"name": "c", "image": image}]},
            }
            is_forbidden = image != "i" and not path.startswith(("/mut", "/mpol"))
            allowed = service.allows(path, object=pod, name=name)
            assert allowed is not (is_forbidden and path != "/validate/ignore"), path


def has_freed(service: Service, revision: int) -> bool:
    """Return whether the worker has freed what it frees by itself, in a thread."""
    assert service.served is not None
    service.served.tick()
    service.loop.run_until_complete(asyncio.sleep(0.05))
    return not census(revision)["replaced"]


def served(service: Service) -> int:
    service.loop.run_until_complete(asyncio.sleep(0.01))
    return service.generations().get(POLICIES, 0)


def census(revision: int) -> Counter[str]:
    """Count the objects of policies, and the policies of other revisions."""
    found: Counter[str] = Counter()
    for one in gc.get_objects():
        kind = type(one)
        if kind in COUNTED:
            found[kind.__name__] += 1
        # Other tests in this process leave policies, too.
        named = _OURS.match(one.name) if kind is PolicyIR else None
        if named is not None and named[1] != str(revision):
            found["replaced"] += 1
    return found


def test_replaced_generations_leave_nothing(service: Service) -> None:
    counts: list[Counter[str]] = []
    # Without collections, a cycle stays; frozen objects could not be counted.
    with (
        patch.object(gc, "collect", lambda _generation=2: 0),
        patch.object(gc, "freeze", lambda: None),
    ):
        for revision in range(GENERATIONS):
            service.put(*documents(revision))
            while service.leader.has_pending:
                service.leader.step()
            if service.served is None:
                service.start()
            wait_for(lambda: served(service) == service.leader.generation, 120)
            ask_everything(service, revision)
            wait_for(partial(has_freed, service, revision), 120)
            counts.append(census(revision))
    assert counts[-1] == counts[1]
    assert {kind.__name__ for kind in COUNTED} == counts[-1].keys()
