"""List what the compiler does with each kind of policies in CEL.

Room: compiler. Takes: nothing. Gives: ``row_of``, ROWS. Next: review.py,
exception_review.py, leader/documents/in_cel.py, cli/sources/compiled.py,
controllers/cel_status.py, controllers/webhook_config/cel_sharing.py.
Source: docs/behaviour/cel 4, 6, 10; docs/behaviour/controllers 13.

All kinds take the same steps; a row has what differs, so no other module asks for the
kind of a policy before it compiles one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kyverno_mp.compiler.autogen import cel as autogen
from kyverno_mp.compiler.autogen import mutating as autogen_mutating
from kyverno_mp.compiler.cel_kinds import image_validating_policy as images
from kyverno_mp.compiler.cel_kinds import mutating_policy as mutating
from kyverno_mp.compiler.cel_kinds import policies
from kyverno_mp.compiler.cel_kinds import validating_policy as validating
from kyverno_mp.compiler.cel_kinds.validating_policy import Builder, Unusable
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.types import Type
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.kubernetes.policy_kinds import (
    DELETING_POLICY,
    GENERATING_POLICY,
    IMAGE_VALIDATING_POLICY,
    MUTATING_POLICY,
    VALIDATING_POLICY,
    PolicyKind,
)


class CompiledKind(NamedTuple):
    """What differs between the kinds. A compiled policy is the IR of its kind."""

    kind: PolicyKind
    compile: Callable[[Any, Iterable[CelPolicyException]], Any]
    """Compile a document with exceptions. Raises: DocumentInvalid, also with their
    problems."""
    publish: (
        Callable[
            [Any, Sequence[CelPolicyException], dict[str, Type]], tuple[Any, Unusable]
        ]
        | None
    )
    """Compile what workers need, with the exceptions that compile in a service; None if
    they need nothing. Raises: DocumentInvalid with the policy's problems alone."""
    problems: Callable[[Any], list[Problem]]
    """Return the problems of a document's expressions."""
    rules: str
    """The field of the spec with the rules as written."""
    exception_names: dict[str, Type] = validating.EXCEPTION_NAMES
    """The variables of exceptions' conditions in a service."""
    compiler: str = ""
    """Name and version of upstream's compiler in the first line of its errors."""
    missing: Callable[[Any], str] = lambda _compiled: ""
    """What a compiled policy needs that only a background pool can do."""
    denies: bool = True
    """Whether its failures can deny requests."""
    is_scanned: bool = False
    """Whether the status tells if the policy is evaluated in the background."""
    is_linked: bool = True
    """Whether workers link it, and so limit its memory."""
    needs_constraints: bool = True
    """Whether matchConstraints need a resource rule."""
    copies: Callable[[Any], Iterator[tuple[str, Any]]] | None = autogen.copies_of
    """Yield (name of the autogen configuration, spec) of each copy of a spec; None if
    the kind has no copies."""
    synchronizes: Callable[[Any], bool] | None = None
    """Whether a document restores what it generated, so that requests that it does not
    match concern it, too; None if the kind generates nothing."""

    def copies_of(self, document: Any) -> Iterator[tuple[str, Any]]:
        """Yield (name of the autogen configuration, spec) of each copy."""
        if self.copies is not None:
            yield from self.copies(document.spec)

    def exception_builder(self, namespace: str = "") -> Builder:
        """Return a builder for the conditions of exceptions in a service."""
        library = partial(kyverno_library, kind=self.kind.name)
        return Builder(namespace, self.exception_names, library)


ROWS: Final = (
    CompiledKind(
        VALIDATING_POLICY,
        validating.compile_validating_policy,
        validating.compile_with_exceptions,
        validating.expression_problems,
        rules="validations",
        compiler="validating policy compiler 1.0",
        is_scanned=True,
    ),
    CompiledKind(
        MUTATING_POLICY,
        mutating.compile_mutating_policy,
        mutating.compile_mutating_with_exceptions,
        lambda document: mutating.build_mutating(document).problems,
        rules="mutations",
        missing=lambda compiled: "mutate existing" if compiled.mutates_existing else "",
        is_scanned=True,
        copies=autogen_mutating.copies_of,
    ),
    CompiledKind(
        GENERATING_POLICY,
        # KYVERNO: all exceptions apply, even if they name other policies.
        policies.compile_generating_policy,
        policies.compile_trigger,
        lambda document: policies.build_generating(document).problems,
        rules="generate",
        exception_names=policies.EXCEPTION_NAMES_OF_GENERATING,
        compiler="generating policy compiler 2.0",
        missing=lambda _compiled: "generate",
        denies=False,
        is_linked=False,
        copies=None,
        synchronizes=policies.is_synchronized,
    ),
    CompiledKind(
        DELETING_POLICY,
        policies.compile_deleting_policy,
        None,
        lambda document: policies.build_deleting(document).problems,
        rules="conditions",
        exception_names=policies.EXCEPTION_NAMES_OF_DELETING,
        compiler="deleting policy compiler 2.0",
        denies=False,
        is_linked=False,
        copies=None,
    ),
    CompiledKind(
        IMAGE_VALIDATING_POLICY,
        images.compile_image_policy,
        images.compile_with_exceptions,
        images.expression_problems,
        rules="validations",
        exception_names=images.EXCEPTION_NAMES,
        needs_constraints=False,
    ),
)
_ROW_OF: Final[Mapping[str, CompiledKind]] = {
    name: row for row in ROWS for name in row.kind.names
}


def row_of(kind: str) -> CompiledKind:
    """Return the row of a kind in CEL, namespaced or not."""
    return _ROW_OF[kind]
