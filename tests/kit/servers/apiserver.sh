#!/bin/sh
# Builds FOLDER/bin/kube-apiserver 1.20 from Debian 12's source package, and the controller manager and the scheduler beside it, for
# the tests of Kubernetes in tests/e2e; Debian itself packages kubectl only. As root on Debian, with 3 GB of disk and some minutes of
# two CPUs. FOLDER/bin belongs on the PATH of the tests. Further arguments: only these of the three programs.
set -eu
[ $# -ge 1 ] || { echo "usage: $0 FOLDER [PROGRAM…]" >&2; exit 2; }
mkdir -p "$1/bin" "$1/src" && cd "$1" && folder=$PWD
shift
[ $# -gt 0 ] || set -- kube-apiserver kube-controller-manager kube-scheduler

sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > /etc/apt/sources.list.d/holdfast-tests-src.sources
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install --no-install-recommends dpkg-dev golang-go golang-github-modern-go-reflect2-dev >/dev/null
[ -d src/kubernetes ] || (cd src && apt-get -qq source --download-only kubernetes && dpkg-source --no-check -x kubernetes_*.dsc kubernetes >/dev/null)
rm /etc/apt/sources.list.d/holdfast-tests-src.sources

export GO111MODULE=off CGO_ENABLED=0 GOPATH="$folder/go" GOCACHE="$folder/cache"
root=k8s.io/kubernetes
mkdir -p "$GOPATH/src/k8s.io" && ln -sfn "$folder/src/kubernetes" "$GOPATH/src/$root" && cd "$GOPATH/src/$root"
# The vendored reflect2 ends with a segmentation fault under Go 1.18 and later; Debian's own does not.
rm -rf vendor/github.com/modern-go/reflect2
cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
# What the API looks like is generated from the sources' comments, and not a part of them. Only the API server tells it.
case " $* " in *" kube-apiserver "*)
go build -o "$folder/bin/openapi-gen" "$root/vendor/k8s.io/kube-openapi/cmd/openapi-gen"
with_api=$(grep -rl --include='*.go' --exclude='*_test.go' '+k8s:openapi-gen=' staging/src/k8s.io pkg cmd | xargs -n1 dirname | sort -u |
    sed "s#^staging/src/#vendor/#; s#^#$root/#" | paste -sd,)
"$folder/bin/openapi-gen" --logtostderr -i "$with_api" -p "$root/pkg/generated/openapi" -O zz_generated.openapi \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$folder/violations" --output-base "$GOPATH/src" ;;
esac
for program in "$@"; do
    go build -trimpath -ldflags "-s -w" -o "$folder/bin/$program" "$root/cmd/$program"
    echo "$folder/bin/$program"
done
