"""Find the conformance data, which is not part of this repository.

``KYVERNO_MP_CONFORMANCE`` names its folder; the default is ``../shared/conformance``
beside the checkout. docs/CONTRIBUTING.md describes its content and how to get it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "KYVERNO_MP_CONFORMANCE"
_BESIDE: Final = Path(__file__).resolve().parents[3] / "shared" / "conformance"

ROOT: Final = Path(os.environ.get(VARIABLE) or _BESIDE).resolve()
PRESENT: Final = (ROOT / "index.json").is_file()
ABSENT: Final = f"no conformance data in {ROOT}; {VARIABLE} names its folder"
"""The reason why a test was skipped."""

if os.environ.get(VARIABLE) and not PRESENT:
    message = f"{VARIABLE}: {ROOT} has no index.json"
    raise RuntimeError(message)


def without_variable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the product's environment: it rejects variables that it does not know."""
    return {name: value for name, value in environment.items() if name != VARIABLE}
