"""The record of verified images: which rule has verified which reference.

Room: program.images. Takes: outcomes of rules; objects. Gives: the two annotations, and
what an object's annotation says about a rule. Next: rule, outcomes, earlier.
Source: docs/behaviour/images 2.3 (step 6), 2.7; docs/behaviour/v1.19 (scoped record).

``kyverno.io/verify-images-scoped`` has the outcomes of each rule and decides.
``kyverno.io/verify-images`` has one outcome for each reference; nothing here reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import IMAGE_RECORD_CHARACTERS_MAX
from kyverno_mp.program import result
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json

ANNOTATION: Final = "kyverno.io/verify-images"
SCOPED: Final = "kyverno.io/verify-images-scoped"
_FORMER: Final = "kyverno.io/verify-images-of-namespace"
"""Written by earlier versions; still removed from objects."""
_OURS: Final = frozenset({ANNOTATION, SCOPED, _FORMER})
_VERSION: Final = 1
DONE: Final = frozenset({result.PASS, result.SKIP})
STATUSES: Final = DONE | {result.FAIL}


class RuleKey(NamedTuple):
    """A rule in the record."""

    policy: str
    """Namespace and name; ``/name`` for a cluster policy."""
    rule: str


def rule_key(policy: PolicyIR, rule: str) -> RuleKey:
    """Return the key of a rule of a policy."""
    return RuleKey(f"{policy.namespace}/{policy.name}", rule)


@dataclass(slots=True)
class ImageRecord:
    """The outcomes of a review, by rule and reference."""

    rules: dict[RuleKey, dict[str, str]] = field(default_factory=dict)
    audited: set[RuleKey] = field(default_factory=set)
    """Rules that only audit the object."""
    pinned: dict[str, str] = field(default_factory=dict)
    """References by those that they replace in the object, which have no digest."""
    skipped: set[str] = field(default_factory=set)
    """References selected by rules that did not run."""

    def add(self, key: RuleKey, reference: str, status: str) -> None:
        """Record an outcome of a rule. SAFETY: a failure is never overwritten.

        KYVERNO: a skip replaces a pass, and the check accepts both
        (docs/behaviour/images 2.7).
        """
        outcomes = self.rules.setdefault(key, {})
        if outcomes.get(reference) != result.FAIL:
            outcomes[reference] = status if status in DONE else result.FAIL

    def copy(self) -> "ImageRecord":
        """Return a copy, for ``restore``."""
        rules = {key: dict(outcomes) for key, outcomes in self.rules.items()}
        return ImageRecord(
            rules, set(self.audited), dict(self.pinned), set(self.skipped)
        )

    def restore(self, before: "ImageRecord") -> None:
        """Restore an earlier state. SAFETY: failures recorded since then are kept."""
        since, self.rules = self.rules, before.rules
        self.pinned = before.pinned
        for key, outcomes in since.items():
            for reference, status in outcomes.items():
                if status == result.FAIL:
                    self.add(key, reference, status)

    def outcomes(self) -> dict[str, str]:
        """Return one outcome for each reference.

        A failure takes precedence, and enforcing rules over those that only audit.
        """
        audited: dict[str, str] = {}
        enforced: dict[str, str] = {}
        for key, recorded in self.rules.items():
            outcomes = audited if key in self.audited else enforced
            for reference, status in recorded.items():
                failed = status == result.FAIL
                for name in (
                    reference,
                    self.pinned.get(reference, reference) if failed else reference,
                ):
                    if outcomes.get(name) != result.FAIL:
                        outcomes[name] = status
        merged = {**audited, **enforced}
        return {
            reference: status
            for reference, status in merged.items()
            if status == result.FAIL or reference not in self.skipped
        }

    def _scoped(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return the outcomes by policy, rule and reference.

        All rules verify the same digest of a tag, so an outcome for the tag is one for
        the reference with the digest that another rule has written.
        """
        scoped: dict[str, dict[str, dict[str, str]]] = {}
        for (policy, rule), recorded in sorted(self.rules.items()):
            pinned = {
                self.pinned[t]: s for t, s in recorded.items() if t in self.pinned
            }
            failed = {t: s for t, s in pinned.items() if s == result.FAIL}
            outcomes = {**pinned, **recorded, **failed}
            scoped.setdefault(policy, {})[rule] = dict(sorted(outcomes.items()))
        return scoped

    def scoped(self) -> "ScopedRecord":
        """Return the outcomes by rule, for a check in the same process."""
        return ScopedRecord({}, self._scoped())

    def written(
        self, resource: dict[str, Json], *, is_scoped: bool = True
    ) -> dict[str, Json]:
        """Return the object with this record, or without annotations if it is empty.

        ``is_scoped``: also with the outcomes of each rule.

        SAFETY: annotations from the user prove nothing, so they are always removed.
        """
        bare = without_record(resource)
        if not self.rules:
            return bare
        outcomes = self.outcomes()
        metadata = bare.get("metadata")
        if type(metadata) is not dict:
            metadata = {}
        annotations = metadata.get("annotations")
        if type(annotations) is not dict:
            annotations = {}
        metadata = {
            key: value for key, value in metadata.items() if key != "annotations"
        }
        record = {}
        if is_scoped:
            scoped = {"version": _VERSION, "policies": self._scoped()}
            record[SCOPED] = json_text(scoped)
        if outcomes:
            record[ANNOTATION] = json_text(dict(sorted(outcomes.items())))
        if annotations or record:
            metadata["annotations"] = {**annotations, **record}
        return {**bare, "metadata": metadata}


def without_record(resource: dict[str, Json]) -> dict[str, Json]:
    """Return the object without any record."""
    annotations = annotations_of(resource)
    if _OURS.isdisjoint(annotations):
        return resource
    metadata = resource["metadata"]
    assert type(metadata) is dict
    metadata = {key: value for key, value in metadata.items() if key != "annotations"}
    if remaining := {
        key: value for key, value in annotations.items() if key not in _OURS
    }:
        metadata["annotations"] = remaining
    return {**resource, "metadata": metadata}


def annotations_of(resource: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the annotations of any object."""
    metadata = resource.get("metadata")
    annotations = metadata.get("annotations") if type(metadata) is dict else None
    return annotations if type(annotations) is dict else {}


class ScopedRecord:
    """The scoped record in the annotation of an object."""

    __slots__ = ("_policies", "problem")

    def __init__(
        self, resource: Mapping[str, Json], policies: Mapping[str, Json] | None = None
    ) -> None:
        """``policies``: the outcomes, if no annotation has them."""
        self.problem = ""
        """Why the annotation cannot be read."""
        self._policies: Mapping[str, Json] = policies or {}
        annotation = annotations_of(resource).get(SCOPED)
        # K8S: the API server admits no longer annotations.
        if type(annotation) is not str or len(annotation) > IMAGE_RECORD_CHARACTERS_MAX:
            return
        try:
            document = decode_json(annotation)
        except JsonInvalid as error:
            self.problem = str(error)
            return
        if type(document) is not dict or document.get("version") != _VERSION:
            return
        policies = document.get("policies")
        self._policies = policies if type(policies) is dict else {}

    def of(self, key: tuple[str, str]) -> Mapping[str, Json]:
        """Return what the record has about a rule, of any type."""
        policy, rule = key
        rules = self._policies.get(policy)
        outcomes = rules.get(rule) if type(rules) is dict else None
        return outcomes if type(outcomes) is dict else {}

    def verified(self, key: tuple[str, str], reference: str) -> str:
        """Return ``pass`` or ``skip`` if the rule has recorded it, otherwise ''."""
        status = self.of(key).get(reference)
        return status if type(status) is str and status in DONE else ""
