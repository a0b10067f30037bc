"""Read the environment of this process; no other module does.

Room: settings. Takes: nothing. Gives: the variables. Next: settings/read.py makes
Settings of them. May touch: os.environ.

A module of its own, because each command asks for a variable at its start, and most
need no Settings, whose import takes longer than such a command.
"""

import os
from collections.abc import Mapping
from typing import Final

TRACES: Final = "KYVERNO_MP_TRACES"
"""The variable that makes a trace of a command."""


def variables() -> Mapping[str, str]:
    """Return the environment."""
    return os.environ
