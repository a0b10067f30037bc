"""Find an image's Sigstore bundles, and verify them.

Room: images. Takes: a registry's Artifacts, an image, Demands, the trust root. Gives:
statements, or errors with upstream's messages. Next: images/bundles/verify.py.
May touch: the network through images/artifacts.py and the trust root.
Source: docs/behaviour/images 5.
"""

from collections.abc import Sequence
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.artifacts import Artifacts, Descriptor, json_object
from kyverno_mp.images.bundles.bundle import IN_TOTO, Bundle, parse
from kyverno_mp.images.bundles.material import parse_material
from kyverno_mp.images.bundles.verify import (
    Demands,
    check_bundle,
    statement_of,
)
from kyverno_mp.images.keys import Unproved, failed
from kyverno_mp.images.sigstore.identity import searches
from kyverno_mp.images.terms import TrustRoot
from kyverno_mp.limits import IMAGE_BUNDLE_BYTES_MAX
from kyverno_mp.program.ports import SignatureQuery
from kyverno_mp.registry.reference import Reference
from kyverno_mp.values.jsonvalue import Json

_TYPE: Final = "application/vnd.dev.sigstore.bundle"
_NOT_ONE: Final = "sigstore bundle verification failed: no matching signatures found"
_NO_TIME: Final = (
    "when initializing a new Verifier, you must specify at least one of"
    " WithObserverTimestamps(), WithSignedTimestamps(), WithIntegratedTimestamps() or"
    " WithCurrentTime(), or exclusively specify WithNoObserverTimestamps()"
)


def bundles_of(
    artifacts: Artifacts, reference: Reference, image: Descriptor, deadline_ns: int
) -> list[Bundle]:
    """Return all bundles of an image.

    KYVERNO: one unreadable bundle fails them all. Raises: ExpressionFailed.
    """
    bundles = []
    for entry in artifacts.referring(reference, image.digest, deadline_ns):
        if not str(entry.get("artifactType")).startswith(_TYPE):
            continue
        digest = str(entry.get("digest"))
        manifest = artifacts.document(reference, digest, deadline_ns)
        layers = json_object(manifest.body, digest).get("layers")
        layer = layers[0] if type(layers) is list and layers else None
        if type(layer) is not dict:
            raise failed("layers not found")
        size = layer.get("size")
        if type(size) is float and size > IMAGE_BUNDLE_BYTES_MAX:
            raise failed(f"layer size {size:.0f} exceeds {IMAGE_BUNDLE_BYTES_MAX}")
        blob = artifacts.blob(reference, str(layer.get("digest")), deadline_ns)
        try:
            bundles.append(parse(blob))
        except Unproved as error:
            raise failed(f"failed to unmarshal bundle: {error}") from None
    return bundles


def verified_bundles(
    bundles: Sequence[Bundle],
    signature_query: SignatureQuery,
    digest: str,
    trust: TrustRoot,
    deadline_ns: int,
) -> list[Bundle]:
    """Return the valid bundles, at least one. Raises: ExpressionFailed."""
    image, logs = signature_query.image, signature_query.logs
    if signature_query.predicate_type:
        bundles = [
            bundle
            for bundle in bundles
            if _is_of(bundle, signature_query.predicate_type)
        ]
    _check_patterns(signature_query)
    try:
        material = parse_material(trust.target("trusted_root.json", deadline_ns))
    except (ExpressionFailed, Unproved) as error:
        reason = error.message if isinstance(error, ExpressionFailed) else str(error)
        raise failed(f"failed to get trusted root: {image}: {reason}") from None
    if logs.ignores_scts:
        # KYVERNO: with ignoreSCT, upstream requires no timestamp, which its verifier
        # rejects (docs/behaviour/images 5).
        raise failed(f"failed to get verify bundles: {image}: {_NO_TIME}")
    demands = Demands(digest, signature_query.identity, needs_log=not logs.is_ignored)
    valid = []
    for bundle in bundles:
        try:
            check_bundle(bundle, material, demands)
        except Unproved:
            continue
        valid.append(bundle)
    if not valid:
        raise failed(_NOT_ONE)
    return valid


def statements_of(bundles: Sequence[Bundle]) -> list[dict[str, Json]]:
    """Return the statements in the form for conditions."""
    statements = [statement_of(bundle) for bundle in bundles]
    return [
        {**statement, "type": statement.get("predicateType")}
        for statement in statements
    ]


def _is_of(bundle: Bundle, predicate_type: str) -> bool:
    if bundle.payload_type != IN_TOTO:
        return False
    try:
        return statement_of(bundle).get("predicateType") == predicate_type
    except Unproved:
        return False


def _check_patterns(signature_query: SignatureQuery) -> None:
    identity = signature_query.identity
    for pattern, noun in (
        (identity.issuer_reg_exp, "issuer"),
        (identity.subject_reg_exp, "subject"),
    ):
        if pattern:
            try:
                searches(pattern, "", noun)
            except Unproved as error:
                message = f"failed to build policy: {signature_query.image}: {error}"
                raise failed(message) from None
