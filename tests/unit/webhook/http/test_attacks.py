"""The attacks of tests/faults are possible for a user.

A failure means: tests/faults/test_neighbours.py and perf/neighbours.py measure an
attack that never begins, because its policy is rejected.
"""

import pytest

from tests.faults.attacks import ATTACKS
from tests.fuzz.bench import segment_of


@pytest.mark.parametrize("name", ATTACKS)
def test_policies_used_by_attacks_are_valid(name: str) -> None:
    segment_of(ATTACKS[name].policy)
