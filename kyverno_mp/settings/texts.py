"""Check at start that a string is a valid value of a setting.

Room: settings. Takes: the text of a variable or flag. Gives: CHECKS, setting -> check.
Next: settings/read.py.
Source: docs/behaviour/controllers 10.1-10.3; Kubernetes' names (RFC 1123).

Such mistakes would otherwise be noticed late or never: a filter that matches nothing,
an unknown reason of Events, a name for which the API server answers 404.
"""

import base64
import re
from collections.abc import Callable, Mapping
from typing import Final

from kyverno_mp.policy.resource_filters import filters_problem
from kyverno_mp.values.budget import budget_problem
from kyverno_mp.values.field_paths import field_paths_problem

Check = Callable[[str], str]
"""Returns the expected format, or "" if the text is valid."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_ACCOUNT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_SERVER: Final = re.compile(
    r"(?:[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
)
_URL: Final = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?\Z")
_PORT_MAX: Final = 65535
EVENT_REASONS: Final = (
    "PolicyApplied",
    "PolicySkipped",
    "PolicyViolation",
    "PolicyError",
)


def _label(value: str) -> str:
    if _LABEL.fullmatch(value):
        return ""
    return "expected lower-case letters, digits and '-', at most 63"


def _name(value: str) -> str:
    if _NAME.fullmatch(value) and ".." not in value:
        return ""
    return "expected lower-case letters, digits, '-' and '.', at most 253"


def _namespace_or_all(value: str) -> str:
    return "" if value == "*" else _label(value) and "expected a namespace's name or *"


def _account(value: str) -> str:
    match = _ACCOUNT.fullmatch(value)
    if match and not _label(match[1]) and not _name(match[2]):
        return ""
    return "expected system:serviceaccount:<namespace>:<name>"


def _server(value: str) -> str:
    match = _SERVER.fullmatch(value)
    if match and 0 < int(match[2] or _PORT_MAX) <= _PORT_MAX:
        return ""
    return "expected host, host:port or [IPv6]:port, without a scheme"


def _host(value: str) -> str:
    match = _SERVER.fullmatch(value)
    return "" if match and not match[2] else "expected a host, without scheme and port"


def _secrets(value: str) -> str:
    for secret in filter(None, (part.strip() for part in value.split(","))):
        namespace, slash, name = secret.lstrip("/").rpartition("/")
        reason = _name(name) or (slash and _label(namespace))
        if reason:
            return reason
    return ""


def _reasons(value: str) -> str:
    for entry in value.split(","):
        reason = entry.strip()
        if reason and reason not in EVENT_REASONS:
            return f"{reason!r} is not one of {', '.join(EVENT_REASONS)}"
    return ""


def _patterns(value: str) -> str:
    for pattern in value.split(","):
        if pattern.strip() and not pattern.strip().removeprefix("!").strip():
            return "expected a name after '!'"
    return ""


def _some_names(value: str) -> str:
    return "" if any(name.strip() for name in value.split(",")) else "expected a name"


def _words(*words: str) -> Check:
    def check(value: str) -> str:
        for word in value.split(","):
            if word.strip() and word.strip() not in words:
                return f"{word.strip()!r} is not one of {', '.join(words)}"
        return ""

    return check


def _mirror(value: str) -> str:
    return "" if not value or _URL.match(value) else "expected a URL with http or https"


def _file_or_url(value: str) -> str:
    is_known = "://" not in value or _URL.match(value)
    return "" if is_known else "expected a file, or a URL with http or https"


def _base64(value: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except ValueError:
        return "expected base64"
    return ""


CHECKS: Final[Mapping[str, Check]] = {
    "resource_filters": filters_problem,
    "exclude_groups": _patterns,
    "exclude_usernames": _patterns,
    "exclude_roles": _patterns,
    "exclude_cluster_roles": _patterns,
    "exception_namespace": _namespace_or_all,
    "omit_events": _reasons,
    "reports_of": _words(
        "validate", "mutate", "mutateExisting", "generate", "imageVerify"
    ),
    "image_pull_secrets": _secrets,
    "registry_credential_helpers": _words(
        "default", "google", "amazon", "azure", "github"
    ),
    "reports_results": _words("pass", "fail", "error", "warn", "skip"),
    "namespace": _label,
    "config_map_name": _name,
    "metrics_config_map_name": _name,
    "deployment_name": _name,
    "service_account_name": _name,
    "service_name": _label,
    "ca_secret_name": _name,
    "tls_secret_name": _name,
    "server_ip": _server,
    "background_service_account": _account,
    "reports_service_account": _account,
    "cleanup_service_account": _account,
    "cleanup_deletion_budget": budget_problem,
    "tuf_mirror": _mirror,
    "tuf_root": _file_or_url,
    "tuf_root_raw": _base64,
    "record_redact": field_paths_problem,
    "record_plain": _words("env", "args", "annotations"),
    "client_names": _some_names,
    "traces_host": _host,
    "metrics_push_host": _host,
}
