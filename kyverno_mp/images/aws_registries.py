"""Read credentials for registries of AWS (ECR) with this pod's identity.

Room: images. Takes: hosts of registries, an Aws. Gives: Credentials.
Next: images/access.py. May touch: the network through images/aws.py.
Source: AWS ECR GetAuthorizationToken: one token serves all registries of a region that
the identity may read, for twelve hours.
"""

import base64
import binascii
import re
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Final

from kyverno_mp.errors import ExpressionFailed, RegistryUnavailable
from kyverno_mp.images.aws import EARLY, REGION, Aws, AwsService, host_of
from kyverno_mp.limits import REGISTRY_SECRETS_MAX
from kyverno_mp.registry.credentials import Credentials
from kyverno_mp.values.jsonvalue import Json

_HOST: Final = re.compile(
    rf"\d{{12}}\.dkr\.ecr\.({REGION})\.amazonaws\.com(?:\.cn)?", re.ASCII
)
_SERVICE: Final = "ecr"
_TARGET: Final = "AmazonEC2ContainerRegistry_V20150921"
_REFUSED: Final = frozenset({"AccessDeniedException", "UnrecognizedClientException"})
_CODE: Final = "registry.provider"


class AwsRegistries:
    """Credentials by region, each used until shortly before its end."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._known: OrderedDict[str, tuple[Credentials, datetime]] = OrderedDict()

    @property
    def has_identity(self) -> bool:
        """Whether this pod has an identity in AWS."""
        return self._aws.has_identity

    def __call__(self, host: str, deadline_ns: int) -> Credentials | None:
        """Return the credentials for a registry; None if it is not one of AWS.

        Raises: ExpressionFailed (no identity, or one without the permission),
        DependencyError.
        """
        matched = _HOST.fullmatch(host)
        if matched is None:
            return None
        region = matched[1]
        known = self._known.get(region)
        if known is None or self._aws.now() >= known[1] - EARLY:
            known = self._known[region] = self._read(region, deadline_ns)
            while len(self._known) > REGISTRY_SECRETS_MAX:
                self._known.popitem(last=False)
        return known[0]

    def _read(self, region: str, deadline_ns: int) -> tuple[Credentials, datetime]:
        api = host_of(f"api.{_SERVICE}", region)
        service = AwsService(_SERVICE, region, api, _TARGET)
        answer = self._aws.ask(service, "GetAuthorizationToken", {}, deadline_ns)
        if answer.error in _REFUSED:
            message = (
                f"AWS ECR answers {answer.error}: the identity of this pod needs"
                " ecr:GetAuthorizationToken"
            )
            raise ExpressionFailed(_CODE, message)
        if answer.error:
            self._aws.forget_credentials()
            raise RegistryUnavailable(_CODE, f"AWS ECR answers {answer.error}")
        return _token_of(answer.content)


def _token_of(content: dict[str, Json]) -> tuple[Credentials, datetime]:
    """Return an answer's credentials and their end. Raises: RegistryUnavailable."""
    tokens = content.get("authorizationData")
    token = tokens[0] if type(tokens) is list and tokens else None
    fields = token if type(token) is dict else {}
    try:
        pair = base64.b64decode(str(fields.get("authorizationToken")), validate=True)
        username, _, password = pair.decode("ascii").partition(":")
        end = datetime.fromtimestamp(float(str(fields.get("expiresAt"))), UTC)
    except (binascii.Error, ValueError, OverflowError, OSError):
        username = password = ""
        end = datetime.now(UTC) - timedelta(1)
    if not (username and password and password.isprintable()):
        # SAFETY: the cause would contain the secret.
        raise RegistryUnavailable(_CODE, "AWS ECR answers without a token")
    return Credentials(username, password), end
