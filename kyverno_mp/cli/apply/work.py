"""Everything that an evaluation needs except its objects.

Room: cli. Takes: compiled policies and the data of a run. Gives: Work, its bytes and
hash, and an Evaluator. Next: evaluate, rounds.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import msgspec

from kyverno_mp import __version__
from kyverno_mp.cli.apply.clocks import clock
from kyverno_mp.cli.apply.evaluate import Evaluator
from kyverno_mp.cli.apply.options import Options
from kyverno_mp.cli.apply.output import needs_messages
from kyverno_mp.cli.apply.stages.admission_policies import AdmissionInput
from kyverno_mp.cli.apply.stages.cel_policies import CelInput
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.user_info import UserInfo
from kyverno_mp.cli.sources.values_file import Values
from kyverno_mp.ir.cleanup import CleanupIR
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.values.jsonvalue import Json


class Work(msgspec.Struct, kw_only=True):
    """The compiled policies of a run and the data that they read."""

    options: Options
    policies: list[CompiledPolicy]
    cleanups: list[CleanupIR]
    admission: list[Any]
    """The records of each kind in CEL, so that short runs do not import them."""
    validating: list[Any]
    images: list[Any]
    authorization: list[Any]
    others: list[Any]
    values: Values = msgspec.field(default_factory=Values)
    user: UserInfo | None = None
    params: Sequence[Json]
    plurals: dict[tuple[str, str], str]
    definitions: Sequence[Json]
    targets: Sequence[Json]
    """Existing objects that rules can change."""
    context: dict[str, Json] | None = None
    """The fields of a Context file."""

    def irs(self) -> Iterator[PolicyIR]:
        """Yield the policies to which the responses of processes refer by position."""
        for compiled in self.policies:
            yield compiled.policy
        for ir in (*self.validating, *self.others, *self.images, *self.cleanups):
            yield ir.policy

    def evaluator(self, cluster_data: ClusterData) -> Evaluator:
        """Link the policies."""
        options = self.options
        return Evaluator(
            self.policies,
            values=self.values,
            user=self.user,
            cluster_data=cluster_data,
            clock=clock(),
            cleanups=self.cleanups,
            admission=AdmissionInput(
                self.admission, self.params, self.plurals, in_cluster=options.cluster
            ),
            cel=CelInput(
                self.validating,
                self.plurals,
                self.others,
                is_cluster=options.cluster,
                images=self.images,
                uses_docker=options.registry,
                layout=options.image_layout,
                definitions=self.definitions,
                authorization=self.authorization,
            ),
            with_messages=needs_messages(options),
        )

    def encode(self) -> bytes:
        """Return the bytes that ``decode`` reads in a process of the same version."""
        others = [(type(ir).__name__, ir) for ir in self.others]
        # SAFETY: passwords, also those in URLs, have done their work.
        options = msgspec.structs.replace(
            self.options, username="", password="", policies=(), resources=()
        )
        plain = msgspec.structs.replace(self, others=others, options=options)
        return msgspec.msgpack.encode((__version__, plain))

    def run(self) -> str:
        """Return the hash of all inputs except the objects, equal for all shards."""
        options = msgspec.structs.replace(self.options, shard="", jobs=0)
        plain = msgspec.structs.replace(self, options=options)
        return hashlib.sha256(plain.encode()).hexdigest()


def decode(data: bytes) -> Work:
    """Return the Work. Raises: CommandFailed if another version has encoded it."""
    # Needed by workers of a cluster only.
    from kyverno_mp.ir.admission_policy import AdmissionPolicyIR
    from kyverno_mp.ir.cel_policies import AnyCelPolicyIR
    from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
    from kyverno_mp.ir.validating_policy import ValidatingPolicyIR

    version, raw = msgspec.msgpack.decode(data, type=tuple[str, msgspec.Raw])
    if version != __version__:
        message = f"a worker has kyverno-mp {__version__}, this run {version}"
        raise CommandFailed(message)
    work = msgspec.msgpack.decode(raw, type=Work)
    work.admission = msgspec.convert(work.admission, list[AdmissionPolicyIR])
    work.validating = msgspec.convert(work.validating, list[ValidatingPolicyIR])
    work.images = msgspec.convert(work.images, list[ImageValidatingPolicyIR])
    types = {kind.__name__: kind for kind in get_args(AnyCelPolicyIR)}
    work.others = [msgspec.convert(ir, types[name]) for name, ir in work.others]
    return work
