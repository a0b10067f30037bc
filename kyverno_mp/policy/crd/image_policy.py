"""Declare ImageValidatingPolicy: trusted signers of images, with CEL.

Room: policy. Takes: nothing. Gives: its schema. Next: policy/crd/cel_kinds.py.
Source: docs/behaviour/controllers 1.7 (ivpol); docs/behaviour/v1.19 4 (trusted root,
extensions and computed subjects).
"""

from typing import Final

from kyverno_mp.policy.crd.cel_policies import (
    EVALUATION,
    MATCH,
    POD_CONTROLLERS,
    VALIDATION_OUTCOME,
    VALIDATIONS,
    WEBHOOK,
    cel_policy,
)
from kyverno_mp.policy.crd.notation import (
    BOOLEAN,
    EXPRESSION,
    TEXT,
    TEXT_MAP,
    TEXTS,
    atomic,
    choice,
    default,
    items,
    one_of,
    record,
)

_GIVEN_OR_COMPUTED: Final = record(
    {"value": TEXT, "expression": TEXT}, oneOf=one_of("value", "expression")
)
_PULL_SECRETS: Final = items(atomic(record({"name": default("", TEXT)})))
_KEY: Final = record(
    {"data": TEXT, "kms": TEXT, "hashAlgorithm": TEXT, "expression": TEXT}
)
_KEYLESS: Final = record(
    {
        "identities*": items(
            record(
                dict.fromkeys(
                    (
                        "issuer",
                        "issuerRegExp",
                        "subject",
                        "subjectRegExp",
                        "subjectExpression",
                    ),
                    TEXT,
                )
            )
        ),
        "roots": TEXT,
        "additionalExtensions": TEXT_MAP,
    }
)
_CTLOG: Final = record(
    {
        "url": TEXT,
        "rekorPubKey": TEXT,
        "ctLogPubKey": TEXT,
        "tsaCertChain": TEXT,
        "insecureIgnoreTlog": BOOLEAN,
        "insecureIgnoreSCT": BOOLEAN,
    }
)
_COSIGN: Final = record(
    {
        "key": _KEY,
        "keyless": _KEYLESS,
        "certificate": record(
            {"cert": _GIVEN_OR_COMPUTED, "certChain": _GIVEN_OR_COMPUTED}
        ),
        # KYVERNO: upstream's spelling, with a capital letter (1.7).
        "source": record(
            {"repository": TEXT, "PullSecrets": _PULL_SECRETS, "tagPrefix": TEXT}
        ),
        "ctlog": _CTLOG,
        "tuf": record({"mirror": TEXT, "root": record({"data": TEXT, "path": TEXT})}),
        "trustedRoot": _GIVEN_OR_COMPUTED,
        "annotations": TEXT_MAP,
    }
)
_ATTESTOR: Final = record(
    {
        "name*": TEXT,
        "cosign": _COSIGN,
        "notary": record({"certs": _GIVEN_OR_COMPUTED, "tsaCerts": _GIVEN_OR_COMPUTED}),
    },
    oneOf=one_of("cosign", "notary"),
)
_STATEMENT: Final = record({"type*": TEXT})
_REGISTRY: Final = record(
    {
        "allowInsecureRegistry": BOOLEAN,
        "providers": items(choice("default", "amazon", "azure", "google", "github")),
        "secrets": TEXTS,
    }
)
_TRUE: Final = default(value=True, schema=BOOLEAN)

IMAGE_VALIDATING_POLICY: Final = cel_policy(
    record(
        {
            "matchConstraints": MATCH["matchConstraints"],
            "matchConditions": items(EXPRESSION),
            "variables": items(atomic(EXPRESSION)),
            **WEBHOOK,
            **VALIDATION_OUTCOME,
            "validations*": VALIDATIONS,
            "evaluation": record(EVALUATION),
            "autogen": record(POD_CONTROLLERS),
            "matchImageReferences": items(
                record(
                    {"glob": TEXT, "expression": TEXT},
                    oneOf=one_of("glob", "expression"),
                )
            ),
            "credentials": _REGISTRY,
            "images": items(EXPRESSION),
            "attestors*": items(_ATTESTOR),
            "attestations": items(
                record({"name*": TEXT, "intoto": _STATEMENT, "referrer": _STATEMENT})
            ),
            "validationConfigurations": default(
                {},
                record(
                    {"mutateDigest": _TRUE, "verifyDigest": _TRUE, "required": _TRUE}
                ),
            ),
        }
    ),
    has_autogen=True,
    is_generated=False,
)
