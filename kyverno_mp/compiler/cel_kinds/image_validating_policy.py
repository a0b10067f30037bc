"""Compile ImageValidatingPolicies with their autogen copies and exceptions.

Room: compiler. Takes: decoded documents. Gives: ImageValidatingPolicyIR. If an
expression does not compile, the whole policy is rejected, as upstream does at
admission.
Next: program/image_policies.
Source: docs/behaviour/cel 4, 5, 10.4; docs/behaviour/images 8; Kyverno
pkg/image/verification/{evaluator/compiler.go,variables/attestors.go},
pkg/cel/compiler/images.go.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Final

from kyverno_mp.compiler.admission_policy import build_constraints
from kyverno_mp.compiler.autogen.cel import copies_of
from kyverno_mp.compiler.cel_kinds.validating_policy import (
    BOOL,
    NAMES,
    Builder,
    Unusable,
    compile_exceptions,
    naming,
    policy_of,
    refuse,
    usable,
)
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.catalogue import base_library, kyverno_library
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.functions.kyverno import images
from kyverno_mp.expr.cel.functions.kyverno.image_verification import with_context
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.types import Type, list_of, map_of
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.ir.image_policies import (
    AccessIR,
    AttestationIR,
    AttestorIR,
    CosignIR,
    ImageBodyIR,
    ImageReferenceIR,
    ImageValidatingPolicyIR,
    LogIR,
    NotaryIR,
    TextIR,
    TufIR,
)
from kyverno_mp.policy.cel_kinds.image_validating_policy import (
    CosignAttestor,
    GivenText,
    ImageValidatingPolicy,
    ImageValidatingPolicySpec,
    MatchImageReference,
    PolicyAttestor,
    PolicyKeyless,
)
from kyverno_mp.policy.cel_kinds.validating_policy import JSON_MODE, CelPolicyException
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.glob import Glob
from kyverno_mp.values.kubernetes.policy_kinds import IMAGE_VALIDATING_POLICY

_IMAGES: Final[dict[str, Type]] = {
    "images": map_of(types.STRING, list_of(types.STRING)),
    "attestors": map_of(types.STRING, types.DYN),
    "attestations": map_of(types.STRING, types.STRING),
}
IMAGE_NAMES: Final[dict[str, Type]] = {
    **{name: cel_type for name, cel_type in NAMES.items() if name != "exceptions"},
    **_IMAGES,
}
_OF_REQUESTS: Final = ("request", "oldObject", "namespaceObject", "variables")
_JSON_NAMES: Final = {
    name: cel_type for name, cel_type in IMAGE_NAMES.items() if name not in _OF_REQUESTS
}
_OUTSIDE: Final = ("resource", "globalContext", "image", "http", "variables")
EXCEPTION_NAMES: Final = {
    name: cel_type for name, cel_type in IMAGE_NAMES.items() if name not in _OUTSIDE
}
"""As in compiler/cel_kinds/validating_policy.py: exceptions in a service make no
calls."""
_LIBRARY: Final = partial(kyverno_library, kind=IMAGE_VALIDATING_POLICY.name)
_LISTS: Final = (list_of(types.STRING), types.DYN, list_of(types.DYN))


def compile_image_policy(
    document: ImageValidatingPolicy, exceptions: Iterable[CelPolicyException] = ()
) -> ImageValidatingPolicyIR:
    """Compile a policy with the exceptions that name it.

    Raises: DocumentInvalid with every expression that does not compile.
    """
    return usable(document, *compile_with_exceptions(document, exceptions))


def compile_with_exceptions(
    document: ImageValidatingPolicy,
    exceptions: Iterable[CelPolicyException] = (),
    names: dict[str, Type] | None = None,
) -> tuple[ImageValidatingPolicyIR, Unusable]:
    """Compile a policy with the exceptions that compile.

    Also return the problems of the other exceptions, as compile_with_exceptions in
    compiler/cel_kinds/validating_policy.py does. Raises: DocumentInvalid.
    """
    bodies: list[ImageBodyIR] = []
    problems: list[Problem] = []
    for copy, spec in (("", document.spec), *copies_of(document.spec)):
        builder = _builder(document)
        bodies.append(builder.image_body(copy, spec))
        problems += builder.problems
    refuse(document, problems)
    attached, unusable = compile_exceptions(
        naming(exceptions, document),
        lambda: _builder(document, names).declared(builder),
    )
    checks = document.spec.validation_configurations
    compiled = ImageValidatingPolicyIR(
        policy=policy_of(document),
        bodies=tuple(bodies),
        exceptions=attached,
        actions=document.spec.validation_actions or ("Deny",),
        is_json=document.mode == JSON_MODE,
        pins=checks is None or checks.mutate_digest,
        needs_digests=checks is not None and checks.verify_digest,
        needs_verification=checks is not None and checks.required,
    )
    return compiled, unusable


def expression_problems(document: ImageValidatingPolicy) -> list[Problem]:
    """Return the problems of all expressions in the policy, without its copies."""
    builder = _builder(document)
    builder.image_body("", document.spec)
    return builder.problems


def _builder(
    document: ImageValidatingPolicy, names: dict[str, Type] | None = None
) -> "_ImageBuilder":
    own_names = _JSON_NAMES if document.mode == JSON_MODE else IMAGE_NAMES
    return _ImageBuilder(document.metadata.namespace, names or own_names, _LIBRARY)


@cache
def _reference_library() -> Library:
    return base_library().extended(images.OVERLOADS)


class _ImageBuilder(Builder):
    """Compiles the expressions of one copy of a policy, and collects problems."""

    def image_body(self, copy: str, spec: ImageValidatingPolicySpec) -> ImageBodyIR:
        """Compile one copy of the policy.

        KYVERNO: variables are declared after match conditions and extractors, so
        neither can use variables.
        """
        conditions = self.conditions(spec.match_conditions)
        references = tuple(self._references(spec.match_image_references))
        extractors = tuple(self._extractors(spec.images))
        variables = self.variables(spec.variables)
        attestors = tuple(
            self._attestor(attestor, f"spec.attestors[{index}]")
            for index, attestor in enumerate(spec.attestors)
        )
        credentials = spec.credentials
        return ImageBodyIR(
            copy=copy,
            constraints=build_constraints(spec.match_constraints),
            conditions=conditions,
            references=references,
            images=extractors,
            variables=variables,
            attestors=attestors,
            attestations=tuple(
                AttestationIR(
                    attestation.name,
                    None if attestation.intoto is None else attestation.intoto.type,
                    None if attestation.referrer is None else attestation.referrer.type,
                )
                for attestation in spec.attestations
            ),
            validations=self.validations(spec.validations),
            annotations=self.annotations(spec.audit_annotations),
            access=None
            if credentials is None
            else AccessIR(
                credentials.allow_insecure_registry,
                credentials.providers,
                credentials.secrets,
            ),
        )

    def compiled(
        self, source: str, path: str, expected: Sequence[Type] = ()
    ) -> tuple[Expression, Type]:
        """Compile an expression of one of these types; () allows any type."""
        expression, kind = super().compiled(source, path, expected)
        return with_context(expression), kind

    def _references(
        self, references: Sequence[MatchImageReference]
    ) -> Iterator[ImageReferenceIR]:
        own_environment, self.environment = (
            self.environment,
            Environment({"ref": types.STRING}, library=_reference_library()),
        )
        for index, reference in enumerate(references):
            path = f"spec.matchImageReferences[{index}]"
            if reference.glob:
                yield self._glob(reference.glob, f"{path}.glob")
            elif reference.expression:
                field = f"{path}.expression"
                compiled, _ = self.compiled(reference.expression, field, BOOL)
                yield ImageReferenceIR(expression=compiled)
            else:
                self.refused("", path, "either glob or expression must be set")
        self.environment = own_environment

    def _glob(self, pattern: str, path: str) -> ImageReferenceIR:
        try:
            Glob(pattern)
        except ValueError as error:
            self.refused(pattern, path, str(error))
        return ImageReferenceIR(glob=pattern)

    def _extractors(
        self, extractors: Sequence[NamedExpression]
    ) -> Iterator[NamedExpressionIR]:
        for index, extractor in enumerate(extractors):
            path = f"spec.images[{index}].expression"
            expression, kind = self.compiled(extractor.expression, path)
            if expression.node is not None and kind not in _LISTS:
                reason = "output is expected to be of type list"
                expression = self.refused(extractor.expression, path, reason)
            yield NamedExpressionIR(extractor.name, expression)

    def _attestor(self, policy_attestor: PolicyAttestor, path: str) -> AttestorIR:
        notary = policy_attestor.notary
        return AttestorIR(
            name=policy_attestor.name,
            cosign=None
            if policy_attestor.cosign is None
            else self._cosign(policy_attestor.cosign, path),
            notary=None
            if notary is None
            else NotaryIR(
                self._text(notary.certs, path), self._text(notary.tsa_certs, path)
            ),
        )

    def _cosign(self, cosign_attestor: CosignAttestor, path: str) -> CosignIR:
        key, keyless, certificate = (
            cosign_attestor.key,
            cosign_attestor.keyless,
            cosign_attestor.certificate,
        )
        source, tuf = cosign_attestor.source, cosign_attestor.tuf
        root = None if tuf is None else tuf.root
        return CosignIR(
            key=None
            if key is None
            else self._text(GivenText(key.data, key.expression), path),
            kms="" if key is None else key.kms,
            algorithm="" if key is None else key.hash_algorithm,
            identities=None
            if keyless is None
            else tuple(
                (
                    identity.subject,
                    identity.subject_reg_exp,
                    identity.issuer,
                    identity.issuer_reg_exp,
                )
                for identity in keyless.identities
            ),
            certificate=None
            if certificate is None
            else self._text(certificate.cert, path),
            chain=None
            if certificate is None
            else self._text(certificate.cert_chain, path),
            repository="" if source is None else source.repository,
            pull_secrets=()
            if source is None
            else tuple(pull_secret.name for pull_secret in source.pull_secrets),
            tag_prefix="" if source is None else source.tag_prefix,
            log=_log(cosign_attestor),
            tuf=None
            if tuf is None
            else TufIR(
                tuf.mirror,
                "" if root is None else root.data,
                "" if root is None else root.path,
            ),
            annotations=tuple(sorted(cosign_attestor.annotations.items())),
            subjects=() if keyless is None else self._subjects(keyless, path),
            extensions=()
            if keyless is None
            else tuple(sorted(keyless.additional_extensions.items())),
            trusted_root=self._text(cosign_attestor.trusted_root, path),
        )

    def _subjects(
        self, keyless: PolicyKeyless, path: str
    ) -> tuple[Expression | None, ...]:
        """Compile the subjects that are computed: one entry for each identity."""
        subjects: list[Expression | None] = []
        for index, identity in enumerate(keyless.identities):
            field = f"{path}.cosign.keyless.identities[{index}].subjectExpression"
            expression = identity.subject_expression
            # SAFETY: the computed pattern would replace the other criterion.
            criterion = "subjectRegExp" if identity.subject_reg_exp else "subject"
            if expression and (identity.subject_reg_exp or identity.subject):
                reason = f"subjectExpression and {criterion} cannot both be set"
                self.refused(expression, field, reason)
            subjects.append(self.compiled(expression, field)[0] if expression else None)
        return tuple(subjects) if any(subjects) else ()

    def _text(self, given_text: GivenText | None, path: str) -> TextIR | None:
        """Compile a text; an expression takes precedence and can have any type."""
        if given_text is None:
            return None
        if not given_text.expression:
            return TextIR(given_text.value)
        return TextIR(given_text.value, self.compiled(given_text.expression, path)[0])


def _log(cosign_attestor: CosignAttestor) -> LogIR | None:
    log = cosign_attestor.ctlog
    if log is None:
        return None
    return LogIR(
        url=log.url,
        key=log.rekor_pub_key,
        scts_key=log.ct_log_pub_key,
        tsa_chain=log.tsa_cert_chain,
        is_ignored=log.insecure_ignore_tlog,
        ignores_scts=log.insecure_ignore_sct,
    )
