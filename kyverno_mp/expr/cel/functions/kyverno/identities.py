"""Implement the parsing of service account names.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, RECORDS. Next:
expr/cel/catalogue.py.
Source: kyverno/sdk cel/libs/user; docs/behaviour/cel 12.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.expr.cel.library import Declaration, function
from kyverno_mp.expr.cel.types import STRING, Type
from kyverno_mp.expr.cel.values import (
    ENTRY_BYTES,
    LIST_BYTES,
    Meter,
    Value,
    text_bytes,
)

_PREFIX: Final = "system:serviceaccount:"
_COST: Final = 30
RECORDS: Final[dict[str, dict[str, Type]]] = {
    "user.ServiceAccount": {"Name": STRING, "Namespace": STRING}
}


def _service_account(meter: Meter, user: str) -> dict[str, Value]:
    """Return Name and Namespace; both are empty for other users."""
    meter.charge_bytes(LIST_BYTES + 2 * ENTRY_BYTES + 2 * text_bytes(len(user), user))
    namespace, colon, name = user.removeprefix(_PREFIX).partition(":")
    if not (colon and user.startswith(_PREFIX)):
        namespace = name = ""
    return {"Name": name, "Namespace": namespace}


def _declared() -> Iterator[Declaration]:
    for prefix in ("", "user."):
        signature = f"{prefix}parseServiceAccount(string) -> ServiceAccount"
        yield function(signature, _service_account, cost=_COST)


OVERLOADS: Final = tuple(_declared())
