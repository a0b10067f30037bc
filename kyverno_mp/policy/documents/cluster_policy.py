"""Declare ClusterPolicy and Policy.

Room: policy. Takes: nothing. Gives: ClusterPolicy, Policy, Spec, Rule. Next:
policy/reading/decode.py, which creates them; policy/check.py, which checks them; the
compiler.
Source: docs/behaviour/controllers 1.2.
"""

from typing import Literal

import msgspec

from kyverno_mp.policy.fields.context import ContextEntry
from kyverno_mp.policy.fields.image_verification import ImageVerification
from kyverno_mp.policy.fields.match import MatchResources
from kyverno_mp.policy.fields.meta import NamedExpression, ObjectMeta
from kyverno_mp.policy.fields.mutation import Generation, Mutation
from kyverno_mp.policy.fields.record import (
    FailurePolicy,
    Fields,
    LooseFailureAction,
    ReportProperties,
    RuleName,
)
from kyverno_mp.policy.fields.validation import FailureActionOverride, Validation
from kyverno_mp.values.jsonvalue import Json

AUTOGEN_ANNOTATION = "pod-policies.kyverno.io/autogen-controllers"
_NO_TYPES: tuple[str, ...] = ()
_VALIDATE = ("validate",)


class ImageExtractor(Fields, frozen=True, kw_only=True):
    """The location of images in objects of a custom kind."""

    path: str
    value: str = ""
    name: str = ""
    key: str = ""
    jmes_path: str = ""


class Rule(Fields, frozen=True, kw_only=True):
    """One rule; exactly one of mutate, validate, generate, verifyImages.

    ``preconditions`` is free-form: any/all, or the legacy list of conditions.
    """

    name: RuleName
    context: tuple[ContextEntry, ...] = ()
    report_properties: ReportProperties = msgspec.field(default_factory=dict)
    match: MatchResources
    exclude: MatchResources | None = None
    image_extractors: dict[str, tuple[ImageExtractor, ...]] | None = None
    preconditions: Json = None
    cel_preconditions: tuple[NamedExpression, ...] | None = None
    mutate: Mutation | None = None
    validate: Validation | None = None
    generate: Generation | None = None
    verify_images: tuple[ImageVerification, ...] = ()
    skip_background_requests: bool = True

    def types(self) -> tuple[str, ...]:
        """Return the actions of the rule, in upstream's order; a valid rule has one.

        An empty mutate or generate block is ignored.
        """
        # PERF: read some ten times for each policy that is compiled.
        if self.mutate is None and self.generate is None and not self.verify_images:
            return _NO_TYPES if self.validate is None else _VALIDATE
        bodies = (
            ("mutate", self.mutate is not None and self.mutate != Mutation()),
            ("validate", self.validate is not None),
            ("generate", self.generate is not None and self.generate != Generation()),
            ("verifyImages", bool(self.verify_images)),
        )
        return tuple(name for name, is_given in bodies if is_given)


class WebhookConfiguration(Fields, frozen=True):
    """``webhookConfiguration``; matchConditions give the policy a separate webhook."""

    failure_policy: FailurePolicy | None = None
    timeout_seconds: int | None = None
    match_conditions: tuple[NamedExpression, ...] = ()


class Spec(Fields, frozen=True):
    """``spec`` of ClusterPolicy and Policy."""

    rules: tuple[Rule, ...] = ()
    apply_rules: Literal["All", "One"] | None = None
    failure_policy: FailurePolicy | None = None
    validation_failure_action: LooseFailureAction = "Audit"
    validation_failure_action_overrides: tuple[FailureActionOverride, ...] = ()
    emit_warning: bool = False
    admission: bool = True
    background: bool = True
    schema_validation: bool | None = None
    webhook_timeout_seconds: int | None = None
    mutate_existing_on_policy_update: bool = False
    generate_existing_on_policy_update: bool | None = None
    generate_existing: bool = False
    use_server_side_apply: bool = False
    webhook_configuration: WebhookConfiguration | None = None


class ClusterPolicy(Fields, frozen=True, kw_only=True):
    """A policy for the whole cluster. ``status`` is written by controllers."""

    api_version: str
    kind: Literal["ClusterPolicy"]
    metadata: ObjectMeta
    spec: Spec
    status: Json = None

    @property
    def key(self) -> str:
        """Return the policy's name in exceptions and reports."""
        return self.metadata.name

    @property
    def written_key(self) -> str:
        """Return the policy's name in the command line's reports and exceptions."""
        return self.metadata.name


class Policy(Fields, frozen=True, kw_only=True):
    """A policy for one namespace; an empty namespace means ``default``."""

    api_version: str
    kind: Literal["Policy"]
    metadata: ObjectMeta
    spec: Spec
    status: Json = None

    @property
    def key(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"

    @property
    def written_key(self) -> str:
        """Return the policy's name in the command line's reports and exceptions.

        KYVERNO: ``name`` alone if the file has no namespace (docs/behaviour/cli 4).
        """
        return self.key if self.metadata.namespace else self.metadata.name


AnyPolicy = ClusterPolicy | Policy
