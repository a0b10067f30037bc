"""Find the conformance data, which is not part of this repository.

``KYVERNO_MP_CONFORMANCE`` names its folder; else it is looked for beside the checkout,
in ``../shared/conformance``. docs/CONTRIBUTING.md describes what is in it
and how to have one.
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
"""Why a test did not run."""

if os.environ.get(VARIABLE) and not PRESENT:
    message = f"{VARIABLE}: {ROOT} has no index.json"
    raise RuntimeError(message)


def without_variable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the product may see: it refuses variables that it does not know."""
    return {name: value for name, value in environment.items() if name != VARIABLE}
