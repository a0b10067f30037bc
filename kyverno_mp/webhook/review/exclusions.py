"""Combine the configured exclusions into one check.

Room: webhook. Takes: the strings of the settings. Gives: ports.Filters. Next: service.
Source: docs/behaviour/controllers 2.3; docs/behaviour/engine 1.8.
"""

from kyverno_mp.program.matching.filters import (
    ResourceFilters,
    UserExclusions,
    parse_resource_filters,
)
from kyverno_mp.program.request import Request


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
