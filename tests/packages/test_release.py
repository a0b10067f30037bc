"""A dry run makes every artefact of a release, and refuses one that was changed.

A failure means: the next release lacks something that users install, or users could
install something that it did not make. Expected: docs/release.md and the formats of
Helm, Krew, Homebrew, CycloneDX and SLSA.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator
from jsonschema import FormatChecker

from deploy.release import trial
from deploy.release.archives import files_below, members_of, pack, sha256, sums_text
from deploy.release.distributions import distributions
from deploy.release.program import platform_name
from deploy.release.provenance import BUNDLE
from deploy.release.source import Refused, notes_of, stage
from deploy.release.verify import SUMS, UNLISTED, Origin, verify
from kyverno_mp import __version__
from kyverno_mp.images.bundles.bundle import parse
from kyverno_mp.images.bundles.material import parse_material
from kyverno_mp.images.bundles.verify import Demands, check_bundle
from kyverno_mp.images.keys import Unproved
from kyverno_mp.program.ports import Identity
from tests.packages.conftest import REPOSITORY, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PAGE: Final = f"https://github.com/{REPOSITORY}"
PROGRAM: Final = f"kyverno-mp-{__version__}-{platform_name()}"


def run(*words: str | Path, **more: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the archive of the command line where nothing else is."""
    folder = tmp_path_factory.mktemp("unpacked")
    run("tar", "-xzf", release / f"{PROGRAM}.tar.gz", cwd=folder)
    return folder / PROGRAM


@pytest.fixture
def copy(release: Path, tmp_path: Path) -> Path:
    """Link all artefacts into a folder that a test may change."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in release.iterdir():
        os.link(path, folder / path.name)
    return folder


def origin(folder: Path) -> Origin:
    root = (folder / trial.ROOT_FILE).read_bytes()
    return Origin(REPOSITORY, root, is_trial=True)


def change(path: Path, edit: Callable[[str], str]) -> None:
    """Replace a file, not the content that the link shares."""
    text = edit(path.read_text())
    path.unlink()
    path.write_text(text)


def test_every_artefact_is_there(release: Path) -> None:
    assert {path.name for path in release.iterdir()} == {
        *(f"kyverno_mp-{__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz")),
        *(f"kyverno-mp-{__version__}.tgz", "index.yaml", "crds.yaml"),
        *("install.yaml", "install-split.yaml", "install-without-crds.yaml"),
        *("authorizer.yaml", f"kyverno-mp-action-{__version__}.tar.gz"),
        f"{PROGRAM}.tar.gz",
        *("kyverno-mp.krew.yaml", "kyverno-mp.rb", "verify-image.yaml"),
        f"kyverno-mp-{__version__}.cdx.json",
        f"kyverno-mp-image-{__version__}.cdx.json",
        *("release-notes.md", "SHA256SUMS", BUNDLE, trial.ROOT_FILE),
    }


def test_sums_are_those_of_coreutils(release: Path) -> None:
    checked = run("sha256sum", "--check", "--strict", SUMS, cwd=release)
    assert checked.count(": OK") == len([*release.iterdir()]) - len(UNLISTED)


def test_the_archive_needs_no_installation(home: Path, tmp_path: Path) -> None:
    """It runs from a link, without PATH, home or variables of this machine."""
    for name, shown in (
        ("kyverno-mp", "kyverno-mp"),
        ("kubectl-kyverno_mp", "kubectl kyverno-mp"),
        ("kubectl-kyverno", "kubectl kyverno"),
    ):
        (tmp_path / name).symlink_to(home / "kyverno-mp")
        usage = run(tmp_path / name, "lint", "-h", cwd=tmp_path, env={})
        assert usage.startswith(f"Usage: {shown} lint ")
    program = tmp_path / "kyverno-mp"
    assert f"Version: {__version__}\n" in run(program, "version", cwd=tmp_path, env={})
    samples = home / "python/share/kyverno-mp/samples"
    done = subprocess.run(
        [program, "apply", samples / "policies", "-r", samples / "resources"],
        capture_output=True, text=True, check=False, env={},
    )  # fmt: skip
    assert "pass: 35, fail: 3" in done.stdout, done.stderr


def test_the_archive_uses_its_own_interpreter_and_libraries(home: Path) -> None:
    (python,) = (home / "python/bin").iterdir()
    code = """
import ssl, sqlite3, lzma, bz2, ctypes, kubernetes.client, cryptography.x509, sys
print(sys.prefix)
print(*sorted({line.split()[-1] for line in open('/proc/self/maps') if '.so' in line}))
"""
    prefix, libraries = run(python, "-I", "-c", code, env={}).splitlines()
    assert prefix == str(home / "python")
    foreign = {
        Path(name).name.partition(".so")[0]
        for name in libraries.split()
        if not name.startswith(prefix)
    }
    assert foreign <= {
        *("ld-linux-x86-64", "ld-linux-aarch64", "libc", "libm", "libdl"),
        *("libpthread", "librt", "libutil", "libresolv"),
    }


def test_packages_contain_manual_pages_and_completions(
    home: Path, release: Path
) -> None:
    share = home / "python/share"
    assert 'eval "$(kyverno-mp' not in (share / "man/man1/kyverno-mp.1").read_text()
    assert ".SH OPTIONS" in (share / "man/man1/kyverno-mp-apply.1").read_text()
    completions = {
        "bash-completion/completions/kyverno-mp": "complete ",
        "zsh/site-functions/_kyverno-mp": "#compdef kyverno-mp",
        "fish/vendor_completions.d/kyverno-mp.fish": "complete ",
    }
    (wheel,) = release.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for name, text in completions.items():
        assert text in (share / name).read_text()
        assert any(one.endswith(f"/data/share/{name}") for one in names)


def test_the_wheel_names_its_pages_and_licence(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    folder = f"kyverno_mp-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        facts = archive.read(f"{folder}/METADATA").decode()
        names = set(archive.namelist())
        scripts = archive.read(f"{folder}/entry_points.txt").decode()
    assert {f"{folder}/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= names
    for label in ("Source", "Issues", "Documentation", "Changelog"):
        assert f"Project-URL: {label}, {PAGE}" in facts
    assert "Classifier: Programming Language :: Python :: 3.11\n" in facts
    assert re.findall(r"^([\w-]+) = ", scripts, re.MULTILINE) == [
        "kubectl-kyverno_mp",
        "kyverno-mp",
    ]


def test_the_chart_is_a_package_of_the_tree(release: Path) -> None:
    members = members_of(release / f"kyverno-mp-{__version__}.tgz")
    chart = ROOT / "deploy/chart"
    tree = {
        f"kyverno-mp/{path.relative_to(chart)}" for path in files_below(chart).values()
    }
    assert set(members) == tree
    values = yaml.safe_load(members["kyverno-mp/values.yaml"])
    images = {
        values["admissionController"]["container"]["image"]["repository"],
        *(values[f"{one}Controller"]["image"]["repository"]
          for one in ("background", "cleanup", "reports")),
    }  # fmt: skip
    assert images == {"ghcr.io/an-owner/kyverno-mp"}
    index = yaml.safe_load((release / "index.yaml").read_text())
    [entry] = index["entries"]["kyverno-mp"]
    start = f"{PAGE}/releases/download/v{__version__}"
    assert entry["urls"] == [f"{start}/kyverno-mp-{__version__}.tgz"]


def test_helm_reads_the_chart(release: Path, helm: str) -> None:
    package = release / f"kyverno-mp-{__version__}.tgz"
    words = ("template", "a-release", package, "--kube-version", "1.34.0")
    rendered = run(helm, *words, "--set", "crds.install=false")
    assert f"image: ghcr.io/an-owner/kyverno-mp:{__version__}\n" in rendered


def test_manifests_name_the_published_image(release: Path) -> None:
    for name in ("install.yaml", "install-split.yaml", "authorizer.yaml"):
        images = set(
            re.findall(r"^ +image: (.*)$", (release / name).read_text(), re.MULTILINE)
        )
        assert images == {f"ghcr.io/an-owner/kyverno-mp:{__version__}"}
    kinds = [
        document["metadata"]["name"]
        for document in yaml.load_all(
            (release / "crds.yaml").read_text(), yaml.CSafeLoader
        )
    ]
    assert len(kinds) == len([*(ROOT / "config/crds").glob("*.yaml")])


def test_the_action_is_complete(release: Path) -> None:
    members = members_of(release / f"kyverno-mp-action-{__version__}.tar.gz")
    steps = members["action.yml"].decode()
    for name in re.findall(r"\$GITHUB_ACTION_PATH/([\w./-]+)", steps):
        assert name in members
    assert {"setup.cfg", "pyproject.toml", "kyverno_mp/__main__.py"} <= set(members)


def test_package_managers_get_the_archive_by_its_sum(release: Path) -> None:
    archive = f"{PAGE}/releases/download/v{__version__}/{PROGRAM}.tar.gz"
    digest = sha256(release / f"{PROGRAM}.tar.gz")
    manifest = yaml.safe_load((release / "kyverno-mp.krew.yaml").read_text())
    assert manifest["metadata"]["name"] == "kyverno-mp"
    [platform] = manifest["spec"]["platforms"]
    assert (platform["uri"], platform["sha256"]) == (archive, digest)
    formula = (release / "kyverno-mp.rb").read_text()
    assert re.findall(r'url "(.*)"\n +sha256 "(.*)"', formula) == [(archive, digest)]
    with tarfile.open(release / f"{PROGRAM}.tar.gz") as content:
        names = content.getnames()
    assert f"{PROGRAM}/{platform['bin']}" in names
    for name in re.findall(r'share/"([\w./-]+[^*"])"', formula):
        assert f"{PROGRAM}/python/share/{name}" in names


def test_bills_of_materials_are_valid_and_complete(release: Path) -> None:
    path = release / f"kyverno-mp-{__version__}.cdx.json"
    assert "iri-reference" in FormatChecker.checkers, "tests/schemas.py came first"
    validator = make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_6)
    assert validator.validate_str(path.read_text()) is None
    for name, file in (
        (f"kyverno-mp-{__version__}.cdx.json", "requirements-cli.txt"),
        (f"kyverno-mp-image-{__version__}.cdx.json", "requirements.txt"),
    ):
        bom = json.loads((release / name).read_text())
        subject = bom["metadata"]["component"]
        assert (subject["name"], subject["version"]) == ("kyverno-mp", __version__)
        pinned = (ROOT / "deploy" / file).read_text()
        expected = set(re.findall(r"^([a-z0-9-]+)==(\S+)", pinned, re.MULTILINE))
        listed = {
            (re.sub(r"[-_.]+", "-", one["name"]).lower(), one["version"])
            for one in bom["components"]
        }
        assert listed == expected


def test_provenance_is_that_of_slsa(release: Path) -> None:
    bundle = json.loads((release / BUNDLE).read_text())
    made = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {one["name"]: one["digest"]["sha256"] for one in made["subject"]}
    lines = (release / SUMS).read_text().splitlines()
    assert subjects == {line[66:]: line[:64] for line in lines}
    build = made["predicate"]["buildDefinition"]
    assert build["externalParameters"]["workflow"]["repository"] == PAGE


def test_the_image_policy_names_the_workflow(release: Path, home: Path) -> None:
    """The dry run's signature has its identity; those of other workflows do not."""
    path = release / "verify-image.yaml"
    run(home / "kyverno-mp", "lint", path, env={})
    [rule] = yaml.safe_load(path.read_text())["spec"]["rules"]
    [block] = rule["verifyImages"]
    [attestation] = block["attestations"]
    keyless = attestation["attestors"][0]["entries"][0]["keyless"]
    who = Identity(issuer=keyless["issuer"], subject_reg_exp=keyless["subjectRegExp"])
    digest = sha256(release / "install.yaml")
    data, root = ((release / name).read_bytes() for name in (BUNDLE, trial.ROOT_FILE))
    assert reason(data, root, who, digest) == ""
    statement = {"subject": [{"digest": {"sha256": digest}}]}
    for subject in (
        f"{PAGE}/.github/workflows/release.yml@refs/heads/main",
        f"{PAGE}/.github/workflows/ci.yml@refs/tags/v{__version__}",
        f"{PAGE}-fork/.github/workflows/release.yml@refs/tags/v{__version__}",
        f"{PAGE}/.github/workflows/release.yml@refs/tags/v{__version__}/x",
    ):
        bundle, other = trial.signed(statement, subject)
        data, root = (json.dumps(one).encode() for one in (bundle, other))
        text = reason(data, root, who, digest)
        assert "no matching certificate identity" in text


def reason(data: bytes, root: bytes, who: Identity, digest: str) -> str:
    demands = Demands(f"sha256:{digest}", who, needs_log=False, now=datetime.now(UTC))
    try:
        check_bundle(parse(data), parse_material(root), demands)
    except Unproved as error:
        return str(error)
    return ""


def test_whoever_downloads_it_can_verify_it(copy: Path) -> None:
    words: tuple[str | Path, ...] = ("-m", "deploy.release.verify", copy)
    said = run(sys.executable, *words, cwd=ROOT)
    assert BUNDLE not in said, "without a trusted root, the origin is unknown"
    words += ("--dry-run", "--repository", REPOSITORY)
    said = run(sys.executable, *words, cwd=ROOT)
    assert f"{BUNDLE}: signed by {PAGE}/" in said


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("install.yaml", lambda text: text + "# more\n"),
        ("SHA256SUMS", lambda text: text.partition("\n")[2]),
        ("SHA256SUMS", lambda text: text + "a line\n"),
    ],
)
def test_a_changed_artefact_is_refused(
    copy: Path, name: str, edit: Callable[[str], str]
) -> None:
    change(copy / name, edit)
    with pytest.raises(Refused, match=SUMS if name == SUMS else name):
        list(verify(copy, None))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kyverno-mp.rb", r'sha256 "\w', 'sha256 "g'),
        ("kyverno-mp.krew.yaml", r"sha256: \w{64}", f"sha256: {'0' * 64}"),
        ("kyverno-mp.krew.yaml", r"version: v.*", "version: v9.9.9"),
        ("index.yaml", r"digest: \w{64}", f"digest: {'0' * 64}"),
        ("install.yaml", r"image: \S+", "image: ghcr.io/an-owner/kyverno-mp:9.9.9"),
        ("verify-image.yaml", r"release\\", "other"),
    ],
)
def test_new_sums_do_not_hide_a_change(
    copy: Path, name: str, old: str, new: str
) -> None:
    """The files contradict one another, or the signature is missing."""
    change(copy / name, lambda text: re.sub(old, new, text))
    change(
        copy / SUMS,
        lambda _: sums_text(one for one in copy.iterdir() if one.name not in UNLISTED),
    )
    with pytest.raises(Refused):
        list(verify(copy, origin(copy)))


def test_a_signature_of_another_repository_is_refused(copy: Path) -> None:
    other = origin(copy)._replace(repository="Another/kyverno-mp")
    with pytest.raises(Refused, match="no matching certificate identity"):
        list(verify(copy, other))
    (copy / BUNDLE).unlink()
    with pytest.raises(Refused, match="there is no"):
        list(verify(copy, origin(copy)))


def test_equal_trees_give_equal_distributions(release: Path, tmp_path: Path) -> None:
    staged = stage(tmp_path / "tree", "", REPOSITORY)
    folder = tmp_path / "again"
    folder.mkdir()
    for path in distributions(staged, folder):
        assert sha256(path) == sha256(release / path.name), path.name


def test_archives_depend_only_on_content(tmp_path: Path) -> None:
    digests = set()
    for number, names in enumerate((("a", "b"), ("b", "a"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names:
            (folder / name).write_text(name)
            os.utime(folder / name, (number, number))
        pack(tmp_path / f"{number}.tgz", files_below(folder), 1)
        digests.add(sha256(tmp_path / f"{number}.tgz"))
    assert len(digests) == 1


def test_a_version_is_prepared_everywhere(tmp_path: Path) -> None:
    """Nothing in the tree names the old version as its own."""
    staged = stage(tmp_path / "tree", "47.11.0", REPOSITORY)
    assert staged.version == "47.11.0"
    tree = staged.tree
    assert "version: 47.11.0\n" in (tree / "deploy/chart/Chart.yaml").read_text()
    dockerfile = (tree / "deploy/Dockerfile").read_text()
    assert 'image.version="47.11.0"' in dockerfile
    manifests = "deploy/install-split.yaml", "deploy/authorizer.yaml"
    for name in ("README.md", "docs/install.md", *manifests):
        text = (tree / name).read_text()
        assert "47.11.0" in text
        assert f"kyverno-mp:{__version__}" not in text
        assert f"/version: {__version__}" not in text
    for name in ("CHANGELOG.md", "docs/changes.md"):
        headings = re.findall(r"^## (\S+)", (tree / name).read_text(), re.MULTILINE)
        assert headings[:2] == ["Unreleased", "47.11.0"]
    assert staged.notes.strip()


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    for version, repository, digest in (
        ("1.0", REPOSITORY, ""),
        ("", "no-owner", ""),
        ("", REPOSITORY, "sha256:0"),
    ):
        with pytest.raises(Refused):
            stage(tmp_path, version, repository, image_digest=digest)
    with pytest.raises(Refused, match=re.escape("about 9.9.9")):
        notes_of("## 1.0.0\n\nText.\n", "9.9.9")
    shutil.rmtree(tmp_path)


def test_only_a_tag_is_published() -> None:
    """Without --dry-run, the commit of this test is not a release."""
    words = ("-m", "deploy.release", "--repository", REPOSITORY, "--output", "unused")
    done = subprocess.run(
        [sys.executable, *words, "48.0.0"], capture_output=True, text=True,
        check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("refused: ")
    assert not (ROOT / "unused").exists()
