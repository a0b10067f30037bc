"""Give all typed documents one manner of decoding: camelCase, closed, frozen.

Room: policy. Takes: nothing. Gives: ``Fields``, the base of every declared record.
Next: the records beside this file, read by policy/shape.py and msgspec.
May touch: nothing outside its arguments.
Source: spec/controllers.md 1.2 (fields), Kubernetes field naming.
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

    A field whose value is null counts as absent, as in Kubernetes. Defaults are those
    of the CRD, so a record equals what the API server would store. ``None`` means
    absent where an empty list or map has a meaning of its own.
    """

    def raw(self) -> Json:
        """Return the record as plain JSON data again, defaults left out.

        Shape: ``{"any": [{"key": "{{ x }}", "operator": "Equals", "value": 1}]}``.
        """
        return msgspec.json.decode(msgspec.json.encode(self))
