"""Apply the configuration of the ConfigMap ``kyverno`` in one worker.

Room: webhook. Takes: the follower of the segment ``settings``. Gives: ports.Filters and
program.ports.RuleSettings of the newest generation. Next: start wires it.
Source: docs/behaviour/controllers 2.3, 10.3; docs/architecture.md 3 (swapped between
two requests).

PERF: filters are compiled once per generation; a request costs one 8-byte read.
"""

from collections.abc import Callable

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.policy.configuration import Configuration
from kyverno_mp.program.matching.filters import (
    ResourceFilters,
    UserExclusions,
    parse_resource_filters,
)
from kyverno_mp.program.ports import RuleSettings
from kyverno_mp.program.request import Request
from kyverno_mp.snapshot.configured import Configured
from kyverno_mp.values.kubernetes.image import ImageSettings


class Exclusions:
    """Resource filters and excluded users of one configuration."""

    __slots__ = ("_resources", "_users")

    def __init__(self, resource_filters: str, users: UserExclusions) -> None:
        self._resources = ResourceFilters(parse_resource_filters(resource_filters))
        self._users = users

    def excludes(self, request: Request) -> bool:
        """Return whether the request is always allowed.

        Both the request and its objects are checked. Kyverno skips every policy for
        excluded objects, which has the same effect.
        """
        return (
            self._users.excludes(request)
            or self._resources.skips_request(request)
            or self._resources.skips_policies(request)
        )


class Compiled:
    """One generation of the configuration, compiled."""

    __slots__ = ("configured", "exclusions", "rule_settings")

    def __init__(self, configured: Configured) -> None:
        self.configured = configured
        self.exclusions = exclusions_of(configured.configuration)
        self.rule_settings = rule_settings_of(configured.configuration)


class CurrentConfiguration:
    """The newest generation; ``base`` before the first one."""

    __slots__ = ("_base", "_current")

    def __init__(
        self, current: Callable[[], Compiled | None], base: Configured
    ) -> None:
        self._current = current
        self._base = Compiled(base)

    def compiled(self) -> Compiled:
        """Return the newest generation."""
        return self._current() or self._base

    def excludes(self, request: Request) -> bool:
        """Return whether the request is always allowed.

        Raises: SnapshotUnusable before the first generation, because without the
        operator's filters, a request could be allowed without a review.
        """
        compiled = self._current()
        if compiled is None:
            raise SnapshotUnusable("webhook.no_snapshot", "nothing is configured yet")
        return compiled.exclusions.excludes(request)

    def rule_settings(self) -> RuleSettings:
        """Return the settings for rules."""
        return (self._current() or self._base).rule_settings


def exclusions_of(configuration: Configuration) -> Exclusions:
    """Compile filters and exclusions."""
    users = UserExclusions(
        groups=configuration.exclude_groups,
        usernames=configuration.exclude_usernames,
        roles=configuration.exclude_roles,
        cluster_roles=configuration.exclude_cluster_roles,
    )
    return Exclusions(configuration.resource_filters, users)


def rule_settings_of(configuration: Configuration) -> RuleSettings:
    """Return the settings for rules from the configuration."""
    return RuleSettings(
        images=ImageSettings(
            default_registry=configuration.default_registry,
            default_registry_mutation=configuration.default_registry_mutation,
        ),
        context_bytes_max=configuration.context_bytes_max,
    )
