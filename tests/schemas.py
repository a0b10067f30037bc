"""Validate with JSON schemas, without the formats of addresses.

jsonschema compiles 38 grammars of addresses while it is imported, if a library of the
extra ``release`` is there: three seconds of CPU time, in each worker of pytest that
collects one module with it. No test that uses this one asserts a format.

Takes: nothing. Gives: jsonschema's validators. May touch: the modules of this process.
"""

import importlib
import sys
from typing import Any, Final

_GRAMMARS: Final = "rfc3987_syntax"


def _imported() -> Any:
    """Import jsonschema as if that library were missing."""
    if _GRAMMARS in sys.modules:
        return importlib.import_module("jsonschema")
    sys.modules[_GRAMMARS] = None  # type: ignore[assignment]  # none: no such module
    try:
        return importlib.import_module("jsonschema")
    finally:
        del sys.modules[_GRAMMARS]


_library: Final = _imported()
Draft202012Validator: Final = _library.Draft202012Validator
validate: Final = _library.validate
