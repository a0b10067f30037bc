"""Define the type of JSON data.

Room: values. Takes: decoded JSON. Gives: the ``Json`` alias used everywhere.
Source: docs/behaviour/engine 0.2: Python ``int`` stands for Go's int64, ``float`` for
float64; ``bool`` is never a number.
"""

from typing import Any, TypeAlias

Json: TypeAlias = Any
"""None, bool, int, float, str, list[Json] or dict[str, Json]."""
