"""Link the attestors of a policy: their fields may be expressions.

Room: program. Takes: AttestorIR. Gives: LinkedAttestor, whose ``query`` evaluates the
fields for one object. Next: evaluate.py.
Source: Kyverno pkg/image/verification/variables/attestors.go at v1.18.2 and (trusted
root) v1.19.0.
"""

from collections.abc import Callable
from typing import NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.values import CelFailed, Value, type_name
from kyverno_mp.ir.image_policies import AttestorIR, CosignIR, LogIR, TextIR
from kyverno_mp.program.context.cel_scope import Dialect, LinkedExpression, link
from kyverno_mp.program.image_policies.ports import (
    AttestorQuery,
    CosignQuery,
    NotaryQuery,
    TufQuery,
)
from kyverno_mp.program.ports import Identity, LogTerms
from kyverno_mp.values.go.regex import compile_regex

Evaluate = Callable[[LinkedExpression], Value]


class _Text(NamedTuple):
    value: str
    linked: LinkedExpression | None
    noun: str

    def read(self, attestor: str, evaluate: Evaluate) -> str:
        """Return the text. Raises: CelFailed."""
        if self.linked is None:
            return self.value
        prefix = f"failed to convert {self.noun} in compiled attestor: {attestor}"
        try:
            value = evaluate(self.linked)
        except ExpressionFailed as error:
            message = f"failed to evaluate compiled attestor: {attestor}"
            raise CelFailed(
                f"{prefix}, error: {message}, error: {error.message}"
            ) from error
        if value.__class__ is not str:
            message = f"failed to convert expression in compiled attestor: {attestor}"
            reason = f"type conversion error from '{type_name(value)}' to 'string'"
            raise CelFailed(f"{prefix}, error: {message}, error: {reason}")
        return str(value)


class LinkedAttestor:
    """One attestor; safe to share between threads."""

    def __init__(self, ir: AttestorIR, dialect: Dialect) -> None:
        self.name = ir.name
        self._ir = ir

        def text(text_ir: TextIR | None, noun: str) -> _Text | None:
            if text_ir is None:
                return None
            linked = (
                None
                if text_ir.expression is None
                else link(text_ir.expression, dialect)
            )
            return _Text(text_ir.value, linked, noun)

        cosign, notary = ir.cosign, ir.notary
        self._key = self._certificate = self._chain = None
        self._trusted = self._stamping = self._root = None
        self._subjects: list[_Text | None] = []
        if cosign is not None:
            self._key = text(cosign.key, "key")
            self._certificate = text(cosign.certificate, "cert")
            self._chain = text(cosign.chain, "cert chain")
            self._root = text(cosign.trusted_root, "trustedRoot")
            self._subjects = [
                None if subject is None else text(TextIR("", subject), "subject")
                for subject in cosign.subjects
            ]
        elif notary is not None:
            self._trusted = text(notary.certificates, "notary cert")
            self._stamping = text(notary.stamping, "notary tsa cert")

    def query(self, evaluate: Evaluate) -> AttestorQuery:
        """Return the query for the verification. Raises: CelFailed, BudgetExceeded."""

        def read(attestor_text: _Text | None) -> str:
            return (
                "" if attestor_text is None else attestor_text.read(self.name, evaluate)
            )

        cosign = self._ir.cosign
        if cosign is None:
            stamping = None if self._stamping is None else read(self._stamping)
            return NotaryQuery(read(self._trusted), stamping)
        key = None if self._key is None else read(self._key)
        cosign_query = _cosign(cosign)
        return cosign_query._replace(
            key=key,
            certificate=read(self._certificate),
            chain=read(self._chain),
            trusted_root=None if self._root is None else read(self._root),
            identities=self._identities(cosign_query.identities, evaluate),
        )

    def _identities(
        self, identities: tuple[Identity, ...] | None, evaluate: Evaluate
    ) -> tuple[Identity, ...] | None:
        """Return the identities with the subjects that are computed.

        SAFETY: a pattern that matches the empty text matches any subject.
        """
        if identities is None or not self._subjects:
            return identities
        complete: list[Identity] = []
        for identity, subject in zip(identities, self._subjects, strict=True):
            if subject is None:
                complete.append(identity)
                continue
            pattern = subject.read(self.name, evaluate)
            if not pattern:
                raise CelFailed(f"the subject of the attestor {self.name} is empty")
            regex = compile_regex(pattern, captures=False).compiled
            if regex is not None and regex.search("") is not None:
                reason = "its pattern matches the empty text"
                raise CelFailed(
                    f"the subject of the attestor {self.name} can be any: {reason}"
                )
            complete.append(identity._replace(subject_reg_exp=pattern))
        return tuple(complete)


def _cosign(ir: CosignIR) -> CosignQuery:
    identities = ir.identities
    return CosignQuery(
        kms=ir.kms,
        algorithm=ir.algorithm,
        identities=None
        if identities is None
        else tuple(Identity(*identity, ir.extensions) for identity in identities),
        repository=ir.repository,
        pull_secrets=ir.pull_secrets,
        tag_prefix=ir.tag_prefix,
        log=None if ir.log is None else _log(ir.log),
        tuf=None
        if ir.tuf is None
        else TufQuery(ir.tuf.mirror, ir.tuf.root, ir.tuf.path),
        annotations=ir.annotations,
    )


def _log(ir: LogIR) -> LogTerms:
    return LogTerms(
        ir.is_ignored, ir.url, ir.key, ir.ignores_scts, ir.scts_key, ir.tsa_chain
    )
