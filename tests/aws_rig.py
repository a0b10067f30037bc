"""A server with AWS's protocols, and clients of it: moto's, from the extra ``test``.

Takes: the program beside this interpreter. Gives: ``running``; Administrator;
``aws_of``, the identity of a pod. May touch: a loopback port, one child process.
"""

import base64
import contextlib
import datetime as dt
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from kyverno_mp.errors import RegistryUnavailable
from kyverno_mp.images.aws import Aws, Credentials, Scope, aws_identity, signed
from kyverno_mp.registry.exchange import RegistryCall, RegistryResponse, exchange
from tests.ports import free_port
from tests.waiting import HANG_S, wait_for

LATER_NS = 2**62
"""A deadline that is not reached."""
PLACES = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
MOTO = shutil.which("moto_server", path=PLACES)


@contextlib.contextmanager
def running() -> Iterator[int]:
    """Yield the port of moto's server, which checks the signature of every request."""
    assert MOTO, "moto's server is part of the extra test"
    port = free_port()
    process = subprocess.Popen(
        [MOTO, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def is_up() -> bool:
        with contextlib.suppress(RegistryUnavailable):
            return ask(port, "GET", "/moto-api/", None, {}).status == 200
        return False

    try:
        wait_for(is_up)
        yield port
    finally:
        process.kill()
        process.wait()


def ask(
    port: int, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> RegistryResponse:
    call = RegistryCall(
        method=method,
        url=f"http://127.0.0.1:{port}{path}",
        headers=headers,
        body=body,
        bytes_max=1 << 20,
    )
    return exchange(call, LATER_NS)


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Administrator:
    """A client with the rights of AWS's administrator."""

    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"
        self.port = port
        self.credentials = Credentials("test", "test")

    def kms(self, target: str, **content: Any) -> dict[str, Any]:
        headers = {
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": f"TrentService.{target}",
        }
        body = json.dumps(content).encode()
        answered: dict[str, Any] = json.loads(self._do("kms", headers, body) or "{}")
        return answered

    def iam(self, action: str, **form: str) -> str:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode({"Action": action, "Version": "2010-05-08", **form})
        return self._do("iam", headers, body.encode())

    def _do(self, service: str, headers: dict[str, str], body: bytes) -> str:
        scope = Scope("us-east-1", service, now())
        own = signed(self.credentials, scope, self.host, headers, body)
        response = ask(self.port, "POST", "/", body, own)
        assert response.status == 200, response.body
        return response.body.decode()

    def create_key(self) -> str:
        created = self.kms("CreateKey", KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256")
        name: str = created["KeyMetadata"]["KeyId"]
        return name

    def sign(self, name: str, data: bytes) -> bytes:
        signature = self.kms(
            "Sign",
            KeyId=name,
            Message=base64.b64encode(data).decode(),
            MessageType="RAW",
            SigningAlgorithm="ECDSA_SHA_256",
        )
        return base64.b64decode(signature["Signature"])


def let_in_only_signed(administrator: Administrator, action: str) -> tuple[str, str]:
    """Return the keys of a user who may do this; from here on moto checks them."""
    administrator.iam("CreateUser", UserName="reader")
    statement = {"Effect": "Allow", "Action": action, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    administrator.iam(
        "PutUserPolicy", UserName="reader", PolicyName="read", PolicyDocument=policy
    )
    created = administrator.iam("CreateAccessKey", UserName="reader")
    access_key, secret_key = (
        re.search(f"<{tag}>(.*?)</{tag}>", created)
        for tag in ("AccessKeyId", "SecretAccessKey")
    )
    assert access_key
    assert secret_key
    answer = ask(administrator.port, "POST", "/moto-api/reset-auth", b"0", {})
    assert answer.status == 200
    return access_key[1], secret_key[1]


def aws_of(moto: int, **env: str) -> Aws:
    """Return AWS for a pod with these variables."""

    def send(call: RegistryCall, _deadline_ns: int) -> RegistryResponse:
        """Send to moto, whose server has no TLS, under the name that is signed."""
        connection = http.client.HTTPConnection("127.0.0.1", moto, HANG_S)
        with contextlib.closing(connection):
            headers = {**call.headers, "host": urlsplit(call.url).netloc}
            connection.request(call.method, "/", call.body, headers)
            response = connection.getresponse()
            return RegistryResponse(response.status, {}, response.read())

    return Aws(aws_identity({"AWS_REGION": "us-east-1", **env}), send, now)
