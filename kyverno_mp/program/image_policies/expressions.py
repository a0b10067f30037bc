"""List the expressions of an ImageValidatingPolicy, and their dependencies.

Room: program. Takes: ImageValidatingPolicyIR. Gives: reads_namespace,
expressions_of. Next: evaluate.py. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 10.4.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.ir.image_policies import (
    AttestorIR,
    ImageBodyIR,
    ImageValidatingPolicyIR,
    TextIR,
)

_NAMESPACE: Final = "namespaceObject"


def reads_namespace(ir: ImageValidatingPolicyIR) -> bool:
    """Return whether the result may depend on the Namespace or its labels."""
    given = [body.constraints for body in ir.bodies]
    if any(one is not None and one.namespace_selector is not None for one in given):
        return True
    return any(_NAMESPACE in expression.text for expression in expressions_of(ir))


def expressions_of(ir: ImageValidatingPolicyIR) -> Iterator[Expression]:
    """Yield all expressions of a policy, its copies and its exceptions."""
    for body in ir.bodies:
        for reference in body.references:
            if reference.expression is not None:
                yield reference.expression
        yield from _of_body(body)
    for exception in ir.exceptions:
        yield from (condition.expression for condition in exception.conditions)


def _of_body(body: ImageBodyIR) -> Iterator[Expression]:
    for named in (*body.conditions, *body.images, *body.variables, *body.annotations):
        yield named.expression
    for given in body.validations:
        yield given.expression
        if given.message_expression is not None:
            yield given.message_expression
    for attestor in body.attestors:
        yield from _of_attestor(attestor)


def _of_attestor(attestor: AttestorIR) -> Iterator[Expression]:
    cosign, notary = attestor.cosign, attestor.notary
    texts: list[TextIR | None] = []
    if cosign is not None:
        texts += [cosign.key, cosign.certificate, cosign.chain, cosign.trusted_root]
        yield from (subject for subject in cosign.subjects if subject is not None)
    if notary is not None:
        texts += [notary.certificates, notary.stamping]
    for text in texts:
        if text is not None and text.expression is not None:
            yield text.expression
