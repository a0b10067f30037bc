"""Leave out the tests of an earlier version where the history does not have it.

Takes: the repository. Gives: what pytest does not collect, and a line that says so.
"""

import pytest

from tests.earlier import COMMIT, has_earlier_tree

collect_ignore = [] if has_earlier_tree() else ["test_versions.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what is not collected: a shallow clone is no reason to fail."""
    for name in collect_ignore:
        line = f"not collected: {name}, as git has no commit {COMMIT[:9]}"
        terminalreporter.write_line(line)
