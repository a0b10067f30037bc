"""Test image references and the ``images`` variable against behaviour/engine 3.8."""

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.kubernetes.image import (
    ImageExtractor,
    ImageSettings,
    extract_images,
    list_images,
    parse_image,
)
from kyverno_mp.values.kubernetes.image_hosts import is_image_like

DIGEST = "sha256:" + "128c6e3534b842a2eec139999b8ce8aa9a2af9907e2b9269550809d18cd832a3"


@pytest.mark.parametrize(
    ("image", "parts", "reference"),
    [
        ("nginx", ("docker.io", "nginx", "latest", ""), "docker.io/nginx:latest"),
        ("a/b:v1", ("docker.io", "a/b", "v1", ""), "docker.io/a/b:v1"),
        ("ghcr.io/a/b", ("ghcr.io", "a/b", "latest", ""), "ghcr.io/a/b:latest"),
        ("localhost/x:1", ("localhost", "x", "1", ""), "localhost/x:1"),
        ("reg:5000/x", ("reg:5000", "x", "latest", ""), "reg:5000/x:latest"),
        ("Foo/bar", ("Foo", "bar", "latest", ""), "Foo/bar:latest"),
        (
            f"nginx@{DIGEST}",
            ("docker.io", "nginx", "", DIGEST),
            f"docker.io/nginx@{DIGEST}",
        ),
        (f"r.io/n:v2@{DIGEST}", ("r.io", "n", "v2", DIGEST), f"r.io/n@{DIGEST}"),
    ],
)
def test_reference_is_parsed(
    image: str, parts: tuple[str, str, str, str], reference: str
) -> None:
    """Policies on registries compare these parts."""
    info = parse_image(image)
    registry, path, tag, _ = parts
    assert parts == (info.registry, info.path, info.tag, info.digest)
    assert path.rpartition("/")[2] == info.name
    assert reference == info.reference == info.text()
    assert f"{registry}/{path}:{tag}" == info.reference_with_tag


def test_default_registry_is_omitted_without_mutation() -> None:
    """EnableDefaultRegistryMutation=false must not add a registry to the reference."""
    info = parse_image("a/nginx", default_registry_mutation=False)
    assert info.registry == ""
    assert info.reference == "a/nginx:latest"
    assert info.reference_with_tag == "a/nginx:latest"


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("nginx:", "invalid reference format"),
        ("Nginx", "repository name must be lowercase"),
        ("a//b", "invalid reference format"),
        (f"x@md5:{'0' * 32}", "unsupported digest algorithm"),
        (f"x@sha256:{'0' * 32}", "invalid checksum digest length"),
        (f"x@sha256:{'A' * 64}", "invalid checksum digest format"),
        ("a" * 256, "repository name must not be more than 255 characters"),
    ],
)
def test_invalid_reference_has_upstreams_error(image: str, reason: str) -> None:
    """The denial contains the text."""
    with pytest.raises(ExpressionFailed) as caught:
        extract_images({"spec": {"containers": [{"name": "c", "image": image}]}}, "Pod")
    assert caught.value.message == (
        f"invalid image '{image}' (bad image: docker.io/{image}, "
        "defaultRegistry: docker.io, "
        f"enableDefaultRegistryMutation: true: {reason})"
    )


def test_images_of_a_pod_by_list_and_name() -> None:
    """``images.containers.web.tag`` is the most common use of the variable."""
    pod = {
        "spec": {
            "initContainers": [{"name": "init", "image": " "}],
            "containers": [
                {"name": "web", "image": "nginx:1.25"},
                {"name": "bare"},
            ],
        }
    }
    assert extract_images(pod, "Pod") == {
        "containers": {
            "web": {
                "registry": "docker.io",
                "name": "nginx",
                "path": "nginx",
                "tag": "1.25",
                "reference": "docker.io/nginx:1.25",
                "referenceWithTag": "docker.io/nginx:1.25",
                "jsonPointer": "/spec/containers/0/image",
            }
        }
    }


def test_the_template_of_a_controller_is_searched() -> None:
    """A CronJob has its Pod inside two nested templates."""
    spec = {"containers": [{"name": "c", "image": "a"}]}
    job = {"template": {"spec": spec}}
    cron = {"spec": {"jobTemplate": {"spec": job}}}
    pointers = [
        extract_images(value, kind)["containers"]["c"]["jsonPointer"]
        for value, kind in (({"spec": job}, "Job"), (cron, "CronJob"))
    ]
    assert pointers == [
        "/spec/template/spec/containers/0/image",
        "/spec/jobTemplate/spec/template/spec/containers/0/image",
    ]
    assert extract_images(cron, "Service") == {}


def test_extractor_finds_images_of_other_kinds() -> None:
    """Only the policy's author knows where custom resources contain images."""
    task = {"spec": {"steps": {"one": {"image": "docker://a:1"}}}}
    extractors = {
        "Task": (
            ImageExtractor("/spec/steps/*/image", jmes_path="trim"),
            ImageExtractor("/spec/none/*", value="image", name="rest"),
        )
    }
    settings = ImageSettings(search=lambda _query, text: text.removeprefix("docker://"))
    images = extract_images(task, "Task", extractors, settings)
    assert list(images) == ["custom"]
    assert images["custom"]["/spec/steps/one/image"]["reference"] == "docker.io/a:1"


def test_images_with_the_same_name_are_all_listed() -> None:
    """A name is the user's choice, and must not hide an image from verification."""
    same = [{"name": "c", "image": "a"}, {"name": "c", "image": "b"}]
    pod = {"spec": {"containers": same}}
    assert [one["name"] for one in list_images(pod, "Pod")] == ["a", "b"]
    extractors = {"Pod": (ImageExtractor("/a"), ImageExtractor("/b"))}
    found = list_images({"a": "x", "b": "y"}, "Pod", extractors)
    assert [one["name"] for one in found] == ["x", "y"]


@pytest.mark.parametrize(
    ("key", "token"), [("a/b", "a~1b"), ("a~1b", "a~01b"), ("9" * 5000, "9" * 5000)]
)
def test_pointers_to_any_key(key: str, token: str) -> None:
    """RFC 6901, section 3."""
    task = {"spec": {"steps": {key: {"image": "a"}}}}
    extractors = {"Task": (ImageExtractor("/spec/steps/*/image"),)}
    (found,) = list_images(task, "Task", extractors)
    assert found["jsonPointer"] == f"/spec/steps/{token}/image"


@pytest.mark.parametrize(
    ("spec", "extractor", "text"),
    [
        ("x", ImageExtractor("/spec/image"), "invalid image config"),
        ("x", ImageExtractor("/spec/*/image"), "invalid type"),
        ({"image": "a"}, ImageExtractor("/spec/image", key="k"), "invalid key"),
        (
            {"image": "a"},
            ImageExtractor("/spec/image", jmes_path="q"),
            "jmespath q must produce a string, but produced 1",
        ),
    ],
)
def test_failed_extraction_has_upstreams_error(
    spec: object, extractor: ImageExtractor, text: str
) -> None:
    """A resource with another structure must be an error, not a rule without images."""
    settings = ImageSettings(search=lambda _query, _text: 1)
    with pytest.raises(ExpressionFailed, match=f"^{text}$"):
        extract_images({"spec": spec}, "Task", {"Task": (extractor,)}, settings)


@pytest.mark.parametrize("pattern_host", ["ghcr.io", "GHCR.io", "ghcr.io:443", "*.io"])
@pytest.mark.parametrize(
    "host", ["ghcr.io", "Ghcr.IO", "ghcr.io:443", "ghcr.io:0443", "GHCR.IO:443"]
)
def test_hosts_of_one_registry_match(pattern_host: str, host: str) -> None:
    """Otherwise, a tenant writes the host in another form, and no image is verified."""
    assert is_image_like(f"{pattern_host}/app/*", f"{host}/app/x:V1")


@pytest.mark.parametrize(
    ("pattern", "image", "expected"),
    [
        ("reg.io:5000/*", "REG.io:05000/x:1", True),
        ("reg.io:*/x:1", "reg.io:443/x:1", True),
        ("reg.io:5000/*", "reg.io/x:1", False),
        ("reg.io/*", "reg.io:5000/x:1", False),
        ("reg.io/*", "reg.io:80/x:1", False),
        ("[::1]/*", "[::1]/x:1", True),
        ("[::1]:443/*", "[::1]/x:1", True),
        ("reg.io/x:v1", "reg.io/x:V1", False),
        ("reg.io/x:443", "reg.io/x", False),
        ("*", "anything", True),
    ],
)
def test_other_parts_are_compared_as_written(
    pattern: str, image: str, *, expected: bool
) -> None:
    assert is_image_like(pattern, image) is expected
