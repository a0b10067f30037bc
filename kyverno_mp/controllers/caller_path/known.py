"""Define what a replica knows about the paths and the failures of its callers.

Room: controllers. Takes: nothing. Gives: Known. Next: controllers/replicas.py reports
it, controllers/caller_path/controller.py decides by it.
Source: docs/SECURITY.md (the caller).
"""

from typing import NamedTuple


class Known(NamedTuple):
    """The number of the newest accepted path segment, and the failed calls.

    ``serial`` is None for a replica of a version without path segments, 0 if it accepts
    none yet. ``exposures`` counts the calls whose path the API server may have shown to
    a requester.
    """

    serial: int | None
    exposures: int = 0
