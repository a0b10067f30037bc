"""Define the records of compiled ImageValidatingPolicies.

Room: ir. Takes: written by compiler/cel_kinds/image_validating_policy.py. Gives:
ImageValidatingPolicyIR, read by program/image_policies. Plain data; no behaviour here.
Source: docs/behaviour/cel 2, 10.4; docs/behaviour/images 8.
"""

import msgspec

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.effects import EFFECT_REGISTRY
from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.cel import CelValidationIR, NamedExpressionIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import CelExceptionIR


class ImageReferenceIR(msgspec.Struct, frozen=True, array_like=True):
    """One of ``matchImageReferences``: a pattern, or an expression on ``ref``."""

    glob: str = ""
    expression: Expression | None = None


class TextIR(msgspec.Struct, frozen=True, array_like=True):
    """A string, or the expression that computes it."""

    value: str = ""
    expression: Expression | None = None


class LogIR(msgspec.Struct, frozen=True, array_like=True):
    """``ctlog``; "" means: use the keys of the trust root."""

    url: str = ""
    key: str = ""
    scts_key: str = ""
    tsa_chain: str = ""
    is_ignored: bool = False
    ignores_scts: bool = False


class TufIR(msgspec.Struct, frozen=True, array_like=True):
    """An attestor's TUF repository; ``path`` names a root file, which is never read."""

    mirror: str = ""
    root: str = ""
    path: str = ""


class CosignIR(msgspec.Struct, frozen=True, array_like=True):
    """``cosign``. ``identities`` is None if the attestor is not keyless.

    An identity is (subject, subject expression, issuer, issuer expression).
    ``subjects`` has for each identity the CEL expression that computes its subject
    expression, or None.
    """

    key: TextIR | None = None
    kms: str = ""
    algorithm: str = ""
    identities: tuple[tuple[str, str, str, str], ...] | None = None
    certificate: TextIR | None = None
    chain: TextIR | None = None
    repository: str = ""
    pull_secrets: tuple[str, ...] = ()
    tag_prefix: str = ""
    log: LogIR | None = None
    tuf: TufIR | None = None
    annotations: tuple[tuple[str, str], ...] = ()
    subjects: tuple[Expression | None, ...] = ()
    extensions: tuple[tuple[str, str], ...] = ()
    """Extensions that the certificate must have, by name or object identifier."""
    trusted_root: TextIR | None = None
    """The trusted root as JSON; None: that of the TUF repository."""


class NotaryIR(msgspec.Struct, frozen=True, array_like=True):
    """``notary``."""

    certificates: TextIR | None = None
    stamping: TextIR | None = None


class AttestorIR(msgspec.Struct, frozen=True, array_like=True):
    """One of ``attestors``: a Cosign or a Notary attestor."""

    name: str
    cosign: CosignIR | None = None
    notary: NotaryIR | None = None


class AttestationIR(msgspec.Struct, frozen=True, array_like=True):
    """One of ``attestations``: an in-toto statement type or an OCI referrer type."""

    name: str
    intoto: str | None = None
    referrer: str | None = None


class AccessIR(msgspec.Struct, frozen=True, array_like=True):
    """``credentials``."""

    insecure: bool = False
    providers: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


class ImageBodyIR(msgspec.Struct, frozen=True, array_like=True):
    """The policy as written, or its autogen copy for controllers of Pods.

    ``copy``: "" or the name of the autogen configuration. Without ``constraints`` every
    object matches. ``images``: the policy's extractors, in addition to the built-in
    ones for each kind.
    """

    copy: str
    constraints: ConstraintsIR | None
    conditions: tuple[NamedExpressionIR, ...]
    references: tuple[ImageReferenceIR, ...]
    images: tuple[NamedExpressionIR, ...]
    variables: tuple[NamedExpressionIR, ...]
    attestors: tuple[AttestorIR, ...]
    attestations: tuple[AttestationIR, ...]
    validations: tuple[CelValidationIR, ...]
    annotations: tuple[NamedExpressionIR, ...] = ()
    access: AccessIR | None = None


class ImageValidatingPolicyIR(msgspec.Struct, frozen=True, array_like=True):
    """A policy with its autogen copies and exceptions."""

    policy: PolicyIR
    bodies: tuple[ImageBodyIR, ...]
    exceptions: tuple[CelExceptionIR, ...] = ()
    actions: tuple[str, ...] = ("Deny",)
    is_json: bool = False
    """Evaluation mode JSON: arbitrary JSON payloads are evaluated, too."""
    pins: bool = True
    """``mutateDigest``: the mutating webhook adds digests to images with tags."""
    needs_digests: bool = False
    """``verifyDigest``: an image without a digest fails."""
    needs_verification: bool = False
    """``required``: an image that no policy of the request has verified fails."""
    effects: int = EFFECT_REGISTRY
