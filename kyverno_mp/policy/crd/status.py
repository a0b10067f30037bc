"""Declare the status that controllers write into the typed documents.

Room: policy. Takes: nothing. Gives: schemas of status. Next: policy/crd/typed_kinds.py.
Source: docs/behaviour/controllers 1.2 (status), 1.3, 1.5.
"""

from functools import cache
from typing import Final

from kyverno_mp.policy.crd.declared import derive
from kyverno_mp.policy.crd.notation import (
    BOOLEAN,
    CONDITION,
    INTEGER,
    TEXT,
    TIME,
    Schema,
    items,
    record,
)
from kyverno_mp.policy.documents.cluster_policy import Rule

_CONDITIONS: Final = items(CONDITION)


@cache
def policy() -> Schema:
    """Return the status of ClusterPolicy and Policy.

    Computed rules have the format of v1 in every version.
    """
    fields = {
        "autogen": record({"rules": items(derive(Rule))}),
        "conditions": _CONDITIONS,
        "ready": BOOLEAN,
        "rulecount": record(
            dict.fromkeys(
                ("validate*", "generate*", "mutate*", "verifyimages*"), INTEGER
            )
        ),
        "validatingadmissionpolicy": record({"generated*": BOOLEAN, "message*": TEXT}),
    }
    return record(fields)


CLEANUP: Final = record({"conditions": _CONDITIONS, "lastExecutionTime": TIME})

ADMISSION: Final = record(
    {
        "conditions": _CONDITIONS,
        "observedGeneration": INTEGER,
        "typeChecking": record(
            {"expressionWarnings": items(record({"fieldRef": TEXT, "warning": TEXT}))}
        ),
    }
)
"""ValidatingAdmissionPolicy, which the API server itself defines."""

GLOBAL_CONTEXT: Final = record({"conditions": _CONDITIONS, "lastRefreshTime": TIME})

GLOBAL_CONTEXT_READY: Final = record(
    {"conditions": _CONDITIONS, "lastRefreshTime": TIME, "ready": BOOLEAN}
)
"""Older versions, with a field that ``conditions`` has replaced."""
