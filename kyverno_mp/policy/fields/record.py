"""Define the base of all typed documents: camelCase, closed, frozen.

Room: policy. Takes: nothing. Gives: ``Fields``, the base of every declared record.
Next: the other records in this folder, for policy/reading/shape.py and msgspec.
Source: docs/behaviour/controllers 1.2 (fields), Kubernetes field naming.
"""

from typing import Annotated, Literal

import msgspec

from kyverno_mp.values.jsonvalue import Json

FailureAction = Literal["Audit", "Enforce"]
LooseFailureAction = Literal["audit", "enforce", "Audit", "Enforce"]
FailurePolicy = Literal["Ignore", "Fail"]
RuleName = Annotated[str, msgspec.Meta(max_length=63)]
ReportProperties = dict[str, str]


class Fields(
    msgspec.Struct,
    frozen=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A mapping with known keys; an unknown key is a problem of the document.

    As in Kubernetes, a field whose value is null is treated as absent. Defaults are the
    CRD's, so that a record equals the object that the API server would store. ``None``
    means absent for fields whose empty list or map has a different meaning.
    """

    def raw(self) -> Json:
        """Return the record as plain JSON data, without defaults.

        Shape: ``{"any": [{"key": "{{ x }}", "operator": "Equals", "value": 1}]}``.
        """
        return msgspec.json.decode(msgspec.json.encode(self))
