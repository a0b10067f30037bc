"""docs/SECURITY.md answers every threat with a test that exists, or with a reason."""

import re

from tests.unit.docs.citing import ROOT

THREATS = 18
"""Of Kubernetes' admission control threat model."""
_ROW = re.compile(r"\| (?P<number>\d+)\. (?P<threat>[^|]+) \| (?P<answer>[^|]+) \|")


def test_each_threat_has_a_test_or_a_reason() -> None:
    text = (ROOT / "docs" / "SECURITY.md").read_text()
    rows = list(_ROW.finditer(text))
    assert [int(row["number"]) for row in rows] == list(range(1, THREATS + 1))
    for row in rows:
        tests = re.findall(r"`(tests/[^`]+)`", row["answer"])
        assert tests or "nly the operator" in row["answer"], row["threat"]
        for path in tests:
            assert (ROOT / path).is_file(), path
