"""Declare the fields of the CLI's own kinds, as in their Go structs.

Room: cli. Takes: nothing. Gives: Structs. Next: values_file, user_info, payloads,
cli/testing/files, cli/cluster/data. Source:
docs/behaviour/cli 6, 15.
"""

from typing import Final

from kyverno_mp.cli.sources.go_struct import BOOL, FREE, TEXT, Many, Named, Struct

TEXTS: Final = Many(TEXT)
META: Final = Struct(
    "ObjectMeta",
    {
        "name": TEXT,
        "generateName": TEXT,
        "namespace": TEXT,
        "selfLink": TEXT,
        "uid": TEXT,
        "resourceVersion": TEXT,
        "generation": FREE,
        "creationTimestamp": TEXT,
        "deletionTimestamp": TEXT,
        "deletionGracePeriodSeconds": FREE,
        "labels": Named(TEXT),
        "annotations": Named(TEXT),
        "ownerReferences": FREE,
        "finalizers": TEXTS,
        "managedFields": FREE,
    },
)
FREE_MAP: Final = Named(FREE)
TYPE: Final = Struct("TypeMeta", {"kind": TEXT, "apiVersion": TEXT})
_NAMESPACE: Final = Struct(
    "Namespace", {"metadata": META, "spec": FREE, "status": FREE}, (TYPE,)
)
_API_RESOURCE: Final = Struct(
    "APIResource",
    {
        "name": TEXT,
        "singularName": TEXT,
        "namespaced": BOOL,
        "group": TEXT,
        "version": TEXT,
        "kind": TEXT,
        "verbs": TEXTS,
        "shortNames": TEXTS,
        "categories": TEXTS,
        "storageVersionHash": TEXT,
    },
)
VALUES: Final = Struct(
    "ValuesSpec",
    {
        "globalValues": FREE_MAP,
        "policies": Many(
            Struct(
                "Policy",
                {
                    "name": TEXT,
                    "resources": Many(
                        Struct("Resource", {"name": TEXT, "values": FREE_MAP})
                    ),
                    "rules": Many(
                        Struct(
                            "Rule",
                            {
                                "name": TEXT,
                                "values": FREE_MAP,
                                "foreachValues": Named(Many(FREE)),
                            },
                        )
                    ),
                },
            )
        ),
        "namespaceSelector": Many(
            Struct("NamespaceSelector", {"name": TEXT, "labels": Named(TEXT)})
        ),
        "namespaces": Many(_NAMESPACE),
        "subresources": Many(
            Struct(
                "Subresource",
                {"subresource": _API_RESOURCE, "parentResource": _API_RESOURCE},
            )
        ),
    },
)
VALUES_FILE: Final = Struct("Values", {"metadata": META}, (TYPE, VALUES))
USER_INFO_FILE: Final = Struct(
    "UserInfo",
    {"metadata": META},
    (
        TYPE,
        Struct(
            "RequestInfo",
            {
                "roles": TEXTS,
                "clusterRoles": TEXTS,
                "userInfo": Struct(
                    "v1.UserInfo",
                    {
                        "username": TEXT,
                        "uid": TEXT,
                        "groups": TEXTS,
                        "extra": Named(Many(TEXT, "v1.ExtraValue")),
                    },
                ),
                "synchronize": BOOL,
            },
        ),
    ),
)
_IMAGE: Final = Struct(
    "ImageData",
    {
        "image": TEXT,
        "resolvedImage": TEXT,
        "registry": TEXT,
        "repository": TEXT,
        "tag": TEXT,
        "digest": TEXT,
        "imageIndex": FREE,
        "manifest": FREE,
        "config": FREE,
    },
)
CONTEXT_FILE: Final = Struct(
    "Context",
    {
        "metadata": META,
        "spec": Struct(
            "ContextSpec", {"resources": Many(FREE_MAP), "images": Many(_IMAGE)}
        ),
    },
    (TYPE,),
)
CLUSTER_FILE: Final = Struct(
    "ClusterResource",
    {
        "metadata": META,
        "spec": Struct(
            "ClusterResourceSpec", {"crds": TEXTS, "resources": Many(FREE_MAP)}
        ),
    },
    (TYPE,),
)
CRD_FILE: Final = Struct(
    "CustomResourceDefinition",
    {"metadata": META, "spec": FREE, "status": FREE},
    (TYPE,),
)
