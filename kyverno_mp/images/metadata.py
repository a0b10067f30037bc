"""Return image data with CEL's field names.

Room: images. Takes: the port of imageRegistry entries. Gives: RegistryMetadata, the
port of ``image.getMetadata``. Next: webhook/images.py, cli/cluster/given_cel.py.
May touch: registries through the port.
Source: docs/behaviour/cel 10.4 (image data).
"""

from kyverno_mp.program.ports import Images
from kyverno_mp.values.jsonvalue import Json


class RegistryMetadata:
    """Image data from registries."""

    def __init__(self, images: Images) -> None:
        self._images = images

    def metadata(self, image: str, deadline_ns: int) -> Json:
        """Return the data. Raises: ExpressionFailed, DependencyError."""
        found = self._images.image_data(image, deadline_ns)
        identifier = str(found["identifier"])
        is_digest = ":" in identifier
        return {
            "image": found["image"],
            "resolvedImage": found["resolvedImage"],
            "registry": found["registry"],
            "repository": found["repository"],
            "tag": "" if is_digest else identifier,
            "digest": str(found["resolvedImage"]).rpartition("@")[2],
            "imageIndex": found.get("manifestList"),
            "manifest": found["manifest"],
            "config": found["configData"],
        }
