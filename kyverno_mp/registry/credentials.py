"""Find the credentials for a registry in docker's configuration or in a Secret.

Room: registry. Takes: docker's configuration folder or a Secret's data, a folder of
certificates, a registry's host. Gives: Credentials. Next: registry/session.py,
images/access.py.
May touch: docker's config.json, the credential helpers that it names, the folder.
Source: docker/cli config file (auths, credHelpers, credsStore); docker
credential-helpers protocol; docs/behaviour/images 6 (Secrets, how their keys match);
docker's certs.d (ca.crt, client.cert and client.key in a folder for each host).

Messages contain neither secrets nor output of credential helpers or decoders.
"""

import base64
import binascii
import contextlib
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.errors import DeadlinePassed, RegistryUnavailable, SettingInvalid

_HUB_NAMES: Final = ("index.docker.io", "docker.io")
_HUB_SERVER: Final = "https://index.docker.io/v1/"
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_HELPER_S_MAX: Final = 30
_ALL_S: Final = float("inf")
_TOKEN_USER: Final = "<token>"  # noqa: S105 - helpers' word for "the secret is a token"


class TlsFiles(NamedTuple):
    """Files for TLS with a registry, "" = none; the authority is an additional one."""

    authority: str = ""
    certificate: str = ""
    key: str = ""


NO_FILES: Final = TlsFiles()


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials for one registry; all fields "" = anonymous.

    ``identity_token`` is exchanged for a bearer token; ``registry_token`` is one.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    tls: TlsFiles = NO_FILES

    def basic(self) -> str:
        """Return the header's value, "" without a user name."""
        if not self.username:
            return ""
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


ANONYMOUS: Final = Credentials()


class RegistryCertificates:
    """A folder in docker's layout: ``HOST[:PORT]/ca.crt, client.cert, client.key``.

    ``has_identity``: whether registries get the client certificates.
    """

    def __init__(self, folder: str, *, has_identity: bool = True) -> None:
        """Raises: SettingInvalid (``registry.certificate``) if it is no folder."""
        if folder and not Path(folder).is_dir():
            message = f"the folder with certificates of registries is none: {folder}"
            raise SettingInvalid("registry.certificate", message)
        self._folder = folder
        self._has_identity = has_identity

    def added(self, credentials: Credentials, host: str) -> Credentials:
        """Return the credentials with the files for the registry.

        Raises: RegistryUnavailable (``registry.certificate``).
        """
        if not self._folder:
            return credentials
        hosts = _HUB_NAMES if host in _HUB_NAMES else (host,)
        try:
            # SAFETY: the author of a Pod names the host, so it is looked up in a list.
            for folder in Path(self._folder).iterdir():
                if folder.name in hosts:
                    return replace(credentials, tls=self._files(folder))
        except OSError as error:
            reason = error.strerror or "unreadable"
            message = f"{host}: the folder with its certificates: {reason}"
            raise RegistryUnavailable("registry.certificate", message) from error
        return credentials

    def _files(self, folder: Path) -> TlsFiles:
        names = ("ca.crt", "client.cert", "client.key")
        paths = [path if (path := folder / name).exists() else None for name in names]
        authority, certificate, key = (str(path or "") for path in paths)
        if not (self._has_identity and certificate and key):
            return TlsFiles(authority)
        return TlsFiles(authority, certificate, key)


class _AuthEntry(msgspec.Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identity_token: str = msgspec.field(default="", name="identitytoken")
    registry_token: str = msgspec.field(default="", name="registrytoken")


class _File(msgspec.Struct):
    auths: dict[str, _AuthEntry] = {}
    helpers: dict[str, str] = msgspec.field(default_factory=dict, name="credHelpers")
    store: str = msgspec.field(default="", name="credsStore")


_FILE = msgspec.json.Decoder(_File)


class _HelperAnswer(msgspec.Struct):
    username: str = msgspec.field(default="", name="Username")
    secret: str = msgspec.field(default="", name="Secret")


_HELPER_ANSWER = msgspec.json.Decoder(_HelperAnswer)


class DockerConfig:
    """docker's configuration; without the file, all access is anonymous."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "config.json"
        self._known: tuple[tuple[int, ...], _File] | None = None

    def credentials(self, host: str, deadline_ns: int = 0) -> Credentials:
        """Return the host's credentials from the file or from its credential helper.

        ``deadline_ns``: the helper's deadline, 0 = only the common time-out of helpers.
        Raises: SettingInvalid (``registry.credentials``), DeadlinePassed.
        """
        file = self._current()
        names = _HUB_NAMES if host in _HUB_NAMES else (host,)
        helper = next(
            (file.helpers[name] for name in names if name in file.helpers),
            file.store,
        )
        if helper:
            server = _HUB_SERVER if host in _HUB_NAMES else host
            return self._ask(helper, server, deadline_ns)
        for key, entry in file.auths.items():
            if _host_of(key) in names:
                return self._of_entry(entry)
        return ANONYMOUS

    def _current(self) -> _File:
        """Return the file, read again after a change, because tokens are refreshed."""
        try:
            facts = self._path.stat()
            state: tuple[int, ...] = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        except OSError:
            # Reading the file raises the error with its reason.
            return self._read()
        cached = self._known
        if cached is None or cached[0] != state:
            cached = self._known = state, self._read()
        return cached[1]

    def _read(self) -> _File:
        try:
            return _FILE.decode(self._path.read_bytes())
        except FileNotFoundError:
            return _File()
        except OSError as error:
            raise self._unusable(error.strerror or "cannot be read") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._unusable("not docker's JSON") from error

    def _of_entry(self, entry: _AuthEntry) -> Credentials:
        credentials = _credentials_of(entry)
        if credentials is None:
            raise self._unusable("an entry's auth is not base64")
        return credentials

    def _ask(self, helper: str, server: str, deadline_ns: int) -> Credentials:
        if _HELPER.fullmatch(helper) is None:
            raise self._unusable("the name of a credential helper is invalid")
        program = f"docker-credential-{helper}"
        left_s = _ALL_S
        if deadline_ns:
            left_s = (deadline_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            raise _late(program)
        try:
            done = subprocess.run(
                [program, "get"],
                input=server.encode(),
                capture_output=True,
                timeout=min(left_s, _HELPER_S_MAX),
                check=False,
            )
        except subprocess.TimeoutExpired:
            if left_s < _HELPER_S_MAX:
                raise _late(program) from None
            raise self._unusable(f"{program} cannot be run") from None
        except OSError:
            raise self._unusable(f"{program} cannot be run") from None
        if done.returncode != 0:
            if b"credentials not found" in done.stdout + done.stderr:
                return ANONYMOUS
            raise self._unusable(f"{program} exited with {done.returncode}")
        try:
            answer = _HELPER_ANSWER.decode(done.stdout)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._unusable(f"{program} did not return JSON") from None
        if answer.username == _TOKEN_USER:
            return Credentials(identity_token=answer.secret)
        return Credentials(answer.username, answer.secret)

    def _unusable(self, reason: str) -> SettingInvalid:
        return SettingInvalid("registry.credentials", f"{self._path}: {reason}")


def _late(program: str) -> DeadlinePassed:
    message = f"{program} did not answer in time"
    return DeadlinePassed("registry.deadline", message)


def _host_of(key: str) -> str:
    """Return the host in a key; older versions of docker wrote URLs."""
    return key.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _credentials_of(entry: _AuthEntry) -> Credentials | None:
    """Return an entry's credentials, None if it is damaged."""
    username, password = entry.username, entry.password
    if entry.auth:
        try:
            pair = base64.b64decode(entry.auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            # SAFETY: the cause would contain the secret.
            return None
        username, _, password = pair.rstrip("\0").partition(":")
    return Credentials(username, password, entry.identity_token, entry.registry_token)


class SecretKeys:
    """The credentials in one Secret, by registry or by repository prefix.

    A key is a host whose labels may contain wildcards, with an optional path prefix;
    the longest matching key wins.
    """

    def __init__(self, data: Mapping[str, object]) -> None:
        """``data``: the Secret's, in base64. A damaged Secret has no credentials."""
        entries: dict[str, _AuthEntry] = {}
        for name, decoder in _SECRET_FILES:
            encoded = data.get(name)
            if type(encoded) is str:
                with contextlib.suppress(
                    ValueError, msgspec.DecodeError, RecursionError
                ):
                    entries |= decoder(base64.b64decode(encoded, validate=True))
        self._entries = sorted(
            entries.items(), key=lambda entry: (-len(entry[0]), entry[0])
        )

    def credentials(self, host: str, repository: str) -> Credentials | None:
        """Return the credentials for a repository, None if no key matches it."""
        names = _HUB_NAMES if host in _HUB_NAMES else (host,)
        for key, entry in self._entries:
            if any(_key_matches(key, name, repository) for name in names):
                return _credentials_of(entry)
        return None


def _auths(content: bytes) -> dict[str, _AuthEntry]:
    return _FILE.decode(content).auths


_AUTHS = msgspec.json.Decoder(dict[str, _AuthEntry])
_SECRET_FILES: Final = ((".dockerconfigjson", _auths), (".dockercfg", _AUTHS.decode))


def _key_matches(key: str, host: str, repository: str) -> bool:
    address = key.removeprefix("https://").removeprefix("http://")
    pattern, _, path = address.partition("/")
    path = path.strip("/")
    if path in ("v1", "v2"):
        # Docker adds the API version to the name of a registry.
        path = ""
    pattern_labels, host_labels = pattern.split("."), host.split(".")
    if len(pattern_labels) != len(host_labels):
        return False
    if not all(map(fnmatchcase, host_labels, pattern_labels)):
        return False
    return not path or repository == path or repository.startswith(f"{path}/")
