"""A policy that cannot be decoded costs no other policy its rows.

A failure means: one damaged record stops all scans, removes rows that are still true,
or leaves the rows of other policies as they were.
"""

from typing import Any

import pytest

from kyverno_mp.ir.rules import PolicyIR, RuleIR
from tests.unit.kube.fake_api import FakeApi
from tests.unit.program.test_undecoded import damaged, field, unreadable
from tests.unit.reports.test_validating_policies import vpol
from tests.unit.reports.world import (
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    term,
)

Json = Any
RULE = RuleIR.__struct_fields__
OTHERS = [("b", "r", "fail"), ("v", "", "fail")]
DAMAGES = [
    *(field(1, at) for at in range(RULE.index("unsupported") + 1)),
    *(field(0, at) for at in range(len(PolicyIR.__struct_fields__))),
    *(unreadable(at, length) for at in (0, 4, 8, 40, 90) for length in (4, 10**6)),
]


def rows(report: Json) -> list[tuple[str, str, str]]:
    return sorted(results(report))


@pytest.mark.parametrize("at", range(len(DAMAGES)))
def test_others_are_scanned_and_its_rows_stay_or_are_errors(
    api: FakeApi, at: int
) -> None:
    world = new_cluster(api)
    policies = (policy("p"), policy("b"), vpol())
    world.serve(*policies)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        before = rows(report_of(api, raw))
        with damaged(DAMAGES[at]):
            world.serve(*policies)
        one.settle()
        other = pod(api, "y")
        one.settle()
        found = rows(report_of(api, raw))
        assert [row for row in found if row[0] != "p"] == OTHERS
        assert [row for row in rows(report_of(api, other)) if row[0] != "p"] == OTHERS
        assert [row[2] for row in found if row[0] == "p"] in (["fail"], ["error"])
        (problem,) = one.reports.problems()
        assert problem.startswith("1 stored policies cannot be decoded")
        # The policy is stored again, as it was.
        world.serve(*policies)
        one.settle()
        assert rows(report_of(api, raw)) == before
        assert not one.reports.problems()
