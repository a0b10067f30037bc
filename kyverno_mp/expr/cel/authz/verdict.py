"""Define the verdict of an answer to a check request.

Room: expr. Takes: nothing. Gives: Verdict. Next: envoy.py, http.py.
Source: docs/behaviour/cel 15.1.
"""

from typing import NamedTuple


class Verdict(NamedTuple):
    """Whether the proxy lets the request through, and the command line's message."""

    is_allowed: bool
    message: str
