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
        data = self._images.image_data(image, deadline_ns)
        identifier = str(data["identifier"])
        is_digest = ":" in identifier
        return {
            "image": data["image"],
            "resolvedImage": data["resolvedImage"],
            "registry": data["registry"],
            "repository": data["repository"],
            "tag": "" if is_digest else identifier,
            "digest": str(data["resolvedImage"]).rpartition("@")[2],
            "imageIndex": data.get("manifestList"),
            "manifest": data["manifest"],
            "config": data["configData"],
        }
