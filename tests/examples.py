"""Scale the examples of property tests to a run's budget, by ``PROPERTY_EXAMPLES``.

Takes: the environment. Gives: numbers of examples, for conftest.py and for tests whose
examples the product creates. The daily job has the largest budget (tox.ini).
"""

import os
from typing import Final

_MIN: Final = 50
"""A smaller budget leaves properties with fewer stated examples as they are."""


def scaled(stated: int) -> int:
    """Return the percentage of a stated number of examples that this run has."""
    percent = int(os.environ.get("PROPERTY_EXAMPLES", "100"))
    return max(stated * percent // 100, min(stated, _MIN))
