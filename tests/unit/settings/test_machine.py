"""A pod knows the limits of its container, not those of its node.

The folders are those of containers. A failure means: a process for each core of a large
node takes memory that the pod does not have, or tenants may store as much as the node
has, and the kernel kills the pod.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kyverno_mp.settings.machine import cores, memory_limit

UNIFIED = "0::/\n"
SLICE = "kubepods.slice/kubepods-burstable.slice"
CONTAINER = f"{SLICE}/cri-containerd-4d7f.scope"
ON_HOST = f"0::/{CONTAINER}\n"
MIB = 1024 * 1024
OLDER = "12:memory:/kubepods/pod1\n5:cpu,cpuacct:/kubepods/pod1\n1:name=systemd:/\n"


def container(
    folder: Path, membership: str, files: Mapping[str, str]
) -> tuple[Path, Path]:
    for name, content in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "membership").write_text(membership)
    return folder / "cgroup", folder / "membership"


@pytest.fixture(autouse=True)
def large_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    machine = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * MIB // 4096}
    monkeypatch.setattr(os, "sysconf", machine.__getitem__)


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param(UNIFIED, {"cpu.max": "50000 100000\n"}, 1, id="500m"),
        pytest.param(UNIFIED, {"cpu.max": "100000 100000\n"}, 1, id="1"),
        pytest.param(UNIFIED, {"cpu.max": "150000 100000\n"}, 2, id="1500m"),
        pytest.param(UNIFIED, {"cpu.max": "1000 100000\n"}, 1, id="10m"),
        pytest.param(UNIFIED, {"cpu.max": "9900000 100000\n"}, 64, id="99"),
        pytest.param(UNIFIED, {"cpu.max": "max 100000\n"}, 64, id="no limit"),
        pytest.param(UNIFIED, {}, 64, id="no controller"),
        pytest.param(UNIFIED, {"cpu.max": "x\n"}, 64, id="unreadable"),
        pytest.param(UNIFIED, {"cpu.max": "50000 0\n"}, 64, id="no period"),
        pytest.param(
            ON_HOST,
            {
                f"{CONTAINER}/cpu.max": "max 100000\n",
                f"{SLICE}/cpu.max": "300000 100000\n",
                "kubepods.slice/cpu.max": "800000 100000\n",
            },
            3,
            id="the pod's slice",
        ),
        pytest.param(ON_HOST, {"cpu.max": "200000 100000"}, 2, id="only the mount"),
        pytest.param("0::/../x\n", {"cpu.max": "200000 100000"}, 2, id="outside"),
        pytest.param(
            OLDER,
            {
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3,
            id="older",
        ),
        pytest.param(
            OLDER,
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            1,
            id="older, only the mount",
        ),
        pytest.param(
            OLDER,
            {
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us": "100000\n",
                "memory/kubepods/pod1/cpu.max": "50000 100000\n",
            },
            64,
            id="older, no limit",
        ),
        pytest.param("", {"cpu.max": "50000 100000"}, 1, id="no membership"),
        pytest.param("garbage\n", {}, 64, id="garbage"),
    ],
)
def test_a_limit_of_cpu_time_limits_the_cores(
    tmp_path: Path, membership: str, files: Mapping[str, str], expected: int
) -> None:
    assert cores(*container(tmp_path, membership, files)) == expected


def test_without_a_kernel_that_says_so_all_cores_count(tmp_path: Path) -> None:
    assert cores(tmp_path / "absent", tmp_path / "absent") == 64


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param(UNIFIED, {"memory.max": "1048576\n"}, MIB, id="container"),
        pytest.param(UNIFIED, {"memory.max": "max\n"}, 64 * MIB, id="no limit"),
        pytest.param(UNIFIED, {}, 64 * MIB, id="no controller"),
        pytest.param(UNIFIED, {"memory.max": "x\n"}, 64 * MIB, id="unreadable"),
        pytest.param(UNIFIED, {"memory.max": "1099511627776"}, 64 * MIB, id="1 TiB"),
        pytest.param(
            ON_HOST,
            {
                f"{CONTAINER}/memory.max": "max\n",
                f"{SLICE}/memory.max": "3145728\n",
                "kubepods.slice/memory.max": "8388608\n",
            },
            3 * MIB,
            id="the pod's slice",
        ),
        pytest.param(
            ON_HOST,
            {
                f"{CONTAINER}/memory.max": "2097152\n",
                f"{SLICE}/memory.max": "3145728\n",
            },
            2 * MIB,
            id="the container's scope",
        ),
        pytest.param(ON_HOST, {"memory.max": "2097152"}, 2 * MIB, id="only the mount"),
        pytest.param("0::/../x\n", {"memory.max": "2097152"}, 2 * MIB, id="outside"),
        pytest.param(
            OLDER,
            {
                "memory/kubepods/pod1/memory.limit_in_bytes": "4194304\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "cpu,cpuacct/kubepods/pod1/memory.limit_in_bytes": "1048576\n",
            },
            4 * MIB,
            id="older",
        ),
        pytest.param(
            OLDER,
            {"memory/memory.limit_in_bytes": "2097152\n"},
            2 * MIB,
            id="older, only the mount",
        ),
        pytest.param("", {"memory.max": "2097152"}, 2 * MIB, id="no membership"),
        pytest.param(
            "",
            {"memory/memory.limit_in_bytes": "2097152"},
            2 * MIB,
            id="older, no membership",
        ),
        pytest.param("garbage\n", {}, 64 * MIB, id="garbage"),
    ],
)
def test_the_least_memory_limit_above_a_process_counts(
    tmp_path: Path, membership: str, files: Mapping[str, str], expected: int
) -> None:
    assert memory_limit(*container(tmp_path, membership, files)) == expected


def test_without_a_limit_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "absent", tmp_path / "absent") == 64 * MIB
