"""Evaluate ``validate.manifests``: the object must be signed by attestors.

Room: program. Takes: ManifestsIR, the new object. Gives: Outcomes. Next:
program/rule.py. May touch: signatures through program/ports.py.
Source: docs/behaviour/images 7.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.ir.rules import ManifestsIR
from kyverno_mp.policy.fields.image_verification import (
    ATTESTOR_SET,
    Attestor,
    AttestorSet,
)
from kyverno_mp.policy.fields.validation import MANIFESTS, Manifests
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import EXPLAIN, NONE, Outcome
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.key_entries import expanded, key_of
from kyverno_mp.program.ports import ManifestQuery, Once, SignedManifests
from kyverno_mp.values.jsonvalue import Json

_DOMAIN: Final = "cosign.sigstore.dev"
_DRY_RUNS: Final = "kyverno-dryrun"
"""Upstream's default namespace for dry runs."""
_ERROR: Final = "error occurred during manifest verification: "


class ManifestBody:
    """One linked ``manifests`` block."""

    def __init__(self, ir: ManifestsIR, namespace: str = "") -> None:
        """``namespace``: that of a namespaced policy."""
        self._given = MANIFESTS.convert(ir.settings)
        self._tenant = namespace or None

    def fast(self, _scope: RuleContext, target: Json, /) -> int:
        """Return NONE for a deletion; otherwise ``explain`` has to decide."""
        return EXPLAIN if target else NONE

    def explain(self, scope: RuleContext, target: Json, /) -> list[Outcome]:
        """Verify all attestor sets."""
        if not target:
            return []
        request = scope.root.get("request")
        if type(request) is dict and request.get("dryRun") is True:
            return [Outcome(result.PASS, "allowed because of DryRun request")]
        port = scope.cluster_data.manifests
        if port is None:
            # SAFETY: an object that cannot be verified is an error, never a pass.
            return [Outcome(result.ERROR, f"{_ERROR}manifests are not verified here")]
        deadline_ns = scope.runtime.deadline_ns
        run = _Run(port, self._given, target, deadline_ns, self._tenant)
        reasons = []
        try:
            for index, listed in enumerate(self._given.attestors):
                holds, reason = run.verify_set(listed, f".attestors[{index}]")
                if not holds:
                    return [Outcome(result.FAIL, reason)]
                reasons.append(reason)
        except ExpressionFailed as error:
            return [Outcome(result.ERROR, _ERROR + error.message, code=error.code)]
        message = f"verified manifest signatures; {','.join(reasons)}"
        return [Outcome(result.PASS, message)]


class _Run:
    """The verification of one object."""

    def __init__(
        self,
        port: SignedManifests,
        manifests: Manifests,
        target: dict[str, Json],
        deadline_ns: int,
        tenant: str | None,
    ) -> None:
        self._deadline_ns = deadline_ns
        self._tenant = tenant
        self._port = port
        self._given = manifests
        self._target = target
        self._dry_runs = Once()

    def verify_set(self, listed: AttestorSet, path: str) -> tuple[bool, str]:
        """Return whether enough entries are verified, and the message.

        Raises: ExpressionFailed if too few are verified because of an error.
        """
        entries = list(expanded(listed))
        required = listed.count or len(entries)
        verified: list[str] = []
        reasons: list[str] = []
        errors: list[str] = []
        for index, entry in enumerate(entries):
            try:
                holds, reason = self._entry(entry, f"{path}.entries[{index}]")
            except ExpressionFailed as error:
                errors.append(error.message)
            else:
                (verified if holds else reasons).append(reason)
            if len(verified) >= required:
                return True, _counted("succeeded", len(verified), required, verified)
        if errors:
            raise ExpressionFailed("manifest.entries", "; ".join(errors))
        return False, _counted("failed", len(verified), required, reasons)

    def _entry(self, entry: Attestor, path: str) -> tuple[bool, str]:
        if entry.attestor is not None:
            return self._nested(entry, path)
        for message in _mismatches(entry, self._target):
            raise ExpressionFailed("manifest.annotations", message)
        location = path + _kind_of(entry)
        if entry.keys is not None and key_of(entry.keys)[:1].isspace():
            # KYVERNO: not an inline key, but the name of a file, so that every key of
            # a PEM text except the first is an error.
            message = (
                "the key begins with white space: give each key an entry of its own"
            )
            raise ExpressionFailed("manifest.key", f"{location}: {message}")
        try:
            answer = self._port.verify(self._query(entry), self._deadline_ns)
        except (ExpressionFailed, DependencyError) as error:
            message = f"{location}: {error.message}"
            if error.code == "manifest.absent":
                return False, message
            raise ExpressionFailed(error.code, message) from error
        if answer.is_verified:
            return True, f"singed by a valid signer: {answer.signer}"
        if answer.diff:
            message = f"failed to verify signature. diff found; {answer.diff}"
        elif answer.signer:
            message = f"no signer matches with this resource. signed by {answer.signer}"
        else:
            message = "failed to verify signature."
        return False, f"{location}: {message}"

    def _nested(self, entry: Attestor, path: str) -> tuple[bool, str]:
        try:
            nested = ATTESTOR_SET.convert(entry.attestor)
        except msgspec.ValidationError as error:
            message = f"failed to unmarshal nested attestor {path}: {error}"
            raise ExpressionFailed("manifest.nested", message) from error
        path = f"{path}.attestor"
        try:
            return self.verify_set(nested, path)
        except ExpressionFailed as error:
            message = f"failed to verify signature; {path}: {error.message}"
            raise ExpressionFailed(error.code, message) from error

    def _query(self, entry: Attestor) -> ManifestQuery:
        """SAFETY: upstream also applies options of earlier entries; we do not."""
        keys, certificates = entry.keys, entry.certificates
        return ManifestQuery(
            document=self._target,
            domain=self._given.annotation_domain or _DOMAIN,
            key=key_of(keys) if keys is not None else "",
            certificate=certificates.cert if certificates is not None else "",
            chain=certificates.cert_chain if certificates is not None else "",
            keyless=entry.keyless,
            ignored=self._given.ignore_fields,
            tenant=self._tenant,
            dry_run=self._dry_run(),
            dry_runs=self._dry_runs,
        )

    def _dry_run(self) -> str:
        """Return the namespace for dry runs, "" without them.

        SAFETY: messages contain fields of the created object, which the webhooks of its
        namespace may have added. So a namespaced policy cannot choose another tenant's
        namespace.
        """
        options = self._given.dry_run
        if options is None or not options.enable:
            return ""
        namespace = options.namespace or _DRY_RUNS
        is_allowed = self._tenant is None or namespace in (_DRY_RUNS, self._tenant)
        return namespace if is_allowed else ""


def _counted(outcome: str, verified: int, required: int, messages: list[str]) -> str:
    return (
        f"manifest verification {outcome}; verifiedCount {verified}; requiredCount"
        f" {required}; message {','.join(messages)}"
    )


def _kind_of(entry: Attestor) -> str:
    if entry.keys is not None:
        return ".keys"
    if entry.certificates is not None:
        return ".certificates"
    return ".keyless" if entry.keyless is not None else ""


def _mismatches(entry: Attestor, target: dict[str, Json]) -> Iterator[str]:
    metadata = target.get("metadata")
    annotations = metadata.get("annotations") if type(metadata) is dict else None
    has = annotations if type(annotations) is dict else {}
    for key, expected in entry.annotations.items():
        actual = has.get(key, "")
        if actual != expected:
            yield (
                f"annotations mismatch: {actual} does not match expected value"
                f" {expected} for key {key}"
            )
