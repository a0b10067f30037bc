"""The same policies give the same results compiled in process and through a snapshot.

A failure means: workers that use a snapshot file give other results than the CLI.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.cli.apply.clocks import clock
from kyverno_mp.cli.apply.evaluate import Evaluator
from kyverno_mp.cli.cluster.data import load_cluster_data
from kyverno_mp.cli.sources.compiled import Compiled, compile_all, compile_cel
from kyverno_mp.cli.sources.exceptions import load_exceptions
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.resources import Text, parse
from kyverno_mp.cli.sources.values_file import Values, load_values
from kyverno_mp.cli.testing.files import read_tests
from kyverno_mp.compiler.cel_kinds.index import encode_cel_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.policies import POLICIES, PoliciesWriter, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY
from tests.conformance.cases import Case, runnable
from tests.conformance.place import ABSENT, PRESENT

pytestmark = pytest.mark.skipif(not PRESENT, reason=ABSENT)


def _through_snapshot(
    policies: list[CompiledPolicy], folder: Path
) -> list[CompiledPolicy]:
    """Write the policies to a segment file, attach it, and read them back."""
    content = PoliciesWriter().encode(
        [encode_policy(policy) for policy in policies],
        generation=1,
        salt=os.urandom(16),
    )
    path = folder / "policies.segment"
    path.write_bytes(content)
    path.chmod(0o600)
    segment = PolicySegment(Segment.attach(path, POLICIES))
    found = []
    for position in range(segment.policy_count):
        policy = segment.policy(position)
        rules = tuple(
            segment.rule(position, number) for number in range(len(policy.rule_actions))
        )
        found.append(CompiledPolicy(policy, rules))
    return found


def _results(
    policies: list[CompiledPolicy],
    resources: list[Any],
    values: Values,
    cluster_data: Any,
) -> list[Any]:
    evaluator = Evaluator(
        policies, values=values, user=None, cluster_data=cluster_data, clock=clock()
    )
    return [
        (r.policy.key, x.rule, x.status, x.message, x.properties)
        for resource in resources
        for r in evaluator.apply(resource)
        for x in r.results
    ]


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in runnable()])
def test_apply_and_webhook_agree(case: Case, tmp_path: Path) -> None:
    for test in read_tests(case.folder / "kyverno-test.yaml"):
        documents = load_policies(test.paths("policies")).documents
        exceptions = load_exceptions(test.paths("exceptions")).of_rules
        compiled = compile_all(documents, exceptions).policies
        values = Values()
        if test.raw.get("variables"):
            values = load_values(test.folder / test.raw["variables"])
        resources = [
            raw
            for path in test.paths("resources")
            # A missing file is not an error of a test.
            if Path(path).is_file()
            for raw in parse(Text(Path(path).read_bytes(), path))
        ]
        cluster_data = load_cluster_data(
            test.paths("clusterResources"), folder=test.folder
        )
        direct = _results(compiled, resources, values, cluster_data)
        stored = _through_snapshot(compiled, tmp_path)
        assert direct == _results(stored, resources, values, cluster_data)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in runnable()])
def test_apply_and_webhook_agree_on_cel_policies(case: Case, tmp_path: Path) -> None:
    """The command line evaluates these records, and workers evaluate the segment's."""
    for test in read_tests(case.folder / "kyverno-test.yaml"):
        found = load_policies(test.paths("policies"))
        exceptions = load_exceptions(test.paths("exceptions")).of_cel
        compiled = compile_cel(found, exceptions, Compiled())
        content = PoliciesWriter().encode(
            [encode_cel_policy(one) for one in compiled],
            generation=1,
            salt=os.urandom(16),
            segment=VALIDATING_POLICY.segment,
        )
        path = tmp_path / "celpolicies.segment"
        path.write_bytes(content)
        path.chmod(0o600)
        segment = CelSegment(
            Segment.attach(path, VALIDATING_POLICY.segment), ValidatingPolicyIR
        )
        assert compiled == [
            segment.record(position) for position in range(segment.policy_count)
        ]
