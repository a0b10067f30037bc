"""docs/cli-pipelines.md states the commands' results for the sample library.

A failure means: a first try of the public policies does not end as documented.
"""

import pytest

from tests.conformance import library
from tests.conformance.place import ABSENT, PRESENT, ROOT

pytestmark = [
    pytest.mark.skipif(not PRESENT, reason=ABSENT),
    pytest.mark.timeout(1200),
]


def test_lint_finds_no_error() -> None:
    found = library.lint(ROOT / "policies")
    assert dict(found.exits) == {0: 1}
    levels = {name.partition(" ")[0] for name in found.counts}
    assert levels == {"warning", "note"}
    (most, _), *_rest = found.counts.most_common()
    assert most == "warning lint.deprecated_field"


def test_apply_succeeds() -> None:
    found = library.apply(ROOT / "policies")
    assert set(found.exits) == {0, 1}
    assert found.counts["error"] == 0
    assert found.counts["pass"] > found.counts["fail"] > 0
