#!/usr/bin/env bash
# Builds etcd, kube-apiserver and kubectl from the versions that standalone/go.mod pins into bin/k8s/. Tests use them as
# a real Kubernetes API; kubectl is for you. Nothing is downloaded but Go modules.
#
# usage: hack/kube-assets.sh
set -euo pipefail
cd "$(dirname "$0")/../standalone"
out=../bin/k8s
stamp=$out/.built-from

# What the binaries depend on. The stamp spares the second or two in which go finds out that nothing changed.
want=$( (cat go.mod go.sum ../hack/kube-assets.sh; go version; go env CGO_ENABLED GOFLAGS) | sha256sum)
if [ -x $out/etcd ] && [ -x $out/kube-apiserver ] && [ -x $out/kubectl ] && [ "$(cat $stamp 2>/dev/null)" = "$want" ]; then
    exit 0
fi
if ! [ -x $out/kube-apiserver ]; then
    echo "Building a Kubernetes API server: about six minutes on two cores the first time, seconds later." >&2
fi
mkdir -p $out
rm -f $stamp

version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes) # such as v1.37.2
IFS=. read -r major minor _ <<<"${version#v}"
x=k8s.io/component-base/version
../hack/progress.sh "building kube-apiserver and kubectl" go build -v -o $out/ \
    -ldflags="-s -w -X $x.gitVersion=$version -X $x.gitMajor=$major -X $x.gitMinor=$minor" \
    k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubectl
../hack/progress.sh "building etcd" go build -v -o $out/etcd -ldflags="-s -w" go.etcd.io/etcd/server/v3
printf '%s\n' "$want" >$stamp
