"""Known differences from Kyverno, checked in both directions.

``ledger.yaml``: a list of {case, door, reason}. A listed case must differ; one that no
longer differs fails until its entry is removed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import yaml

_FILE = Path(__file__).with_name("ledger.yaml")
_IMAGES = Path(__file__).with_name("images_ledger.yaml")


@cache
def _entries() -> dict[tuple[str, str], str]:
    raw = yaml.safe_load(_FILE.read_text()) or []
    for group in yaml.safe_load(_IMAGES.read_text()) or []:
        raw += [
            {"case": f"images/{case}", "door": "apply", "reason": group["reason"]}
            for case in group["cases"]
        ]
    entries = {(item["case"], item["door"]): item["reason"] for item in raw}
    assert len(entries) == len(raw), "an entry is listed twice"
    assert all(entries.values()), "an entry has no reason"
    return entries


@contextmanager
def differs(case_id: str, door: str, *, same: bool) -> Iterator[None]:
    """Run the comparison; a difference is expected if the ledger lists this case."""
    reason = _entries().get((case_id, door))
    if reason is None:
        yield
    elif same:
        pytest.fail(f"{case_id} no longer differs at {door}: remove it ({reason})")
    else:
        try:
            yield
        except AssertionError:
            return
