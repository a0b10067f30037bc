#!/bin/sh
# Print copies of the permissions that Kyverno's accounts have now, under other names.
# An upgrade replaces the permissions before the last old pod has ended: while the copies
# exist, pods of both programs have what they need. Next: docs/upgrade.md.
set -eu
namespace=${1:-kyverno}
head='{"{\"apiVersion\":\"rbac.authorization.k8s.io/v1\",\"kind\":\""}{.kind}'
head="$head"'{"\",\"metadata\":{\"name\":\"before:"}{.metadata.name}{"\"},"}'
role="$head"'{"\"rules\":"}{.rules}{"}\n"}'
binding="$head"'{"\"subjects\":"}{.subjects}{",\"roleRef\":{\"kind\":\""}{.roleRef.kind}'
binding="$binding"'{"\",\"apiGroup\":\"rbac.authorization.k8s.io\",\"name\":\"before:"}'
binding="$binding"'{.roleRef.name}{"\"}}\n"}'
for one in admission background reports cleanup; do
  for kind in clusterrole role; do
    name="kyverno:$one-controller"
    rules=$(kubectl -n "$namespace" get "$kind" "$name" --ignore-not-found -o jsonpath='{.rules}')
    # An account without rules has nothing to lose.
    [ -n "$rules" ] || continue
    kubectl -n "$namespace" get "$kind" "$name" -o "jsonpath=$role"
    kubectl -n "$namespace" get "${kind}binding" "$name" -o "jsonpath=$binding"
  done
done
