#!/usr/bin/env bash
# Checks what a target needs from the machine and installs what is missing when it may (root or passwordless sudo,
# apt-get present). Otherwise it prints the one line to type and fails.
#
# usage: hack/setup.sh [go] [cc] [curl] [certs] [python] [postgresql] [kvm] [crawlers]
set -euo pipefail
cd "$(dirname "$0")/.."

need_go=1.26

say() { printf 'setup: %s\n' "$*" >&2; }

# The race detector needs a C compiler and the C library's headers; a gcc that
# was installed without its recommended packages has no headers. The go command
# takes the compiler that its CC names, and no other that may be here.
cc_name() { go env CC 2>/dev/null || echo gcc; }
has_cc() {
    local cc out ok=0
    read -ra cc <<<"$(cc_name)" # it may have arguments
    out=$(mktemp)
    printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' | "${cc[@]}" -x c -o "$out" - 2>/dev/null || ok=1
    rm -f "$out"
    return "$ok"
}

# Any of the folders and files where Go looks for root certificates will do.
has_certs() {
    [ -n "${SSL_CERT_FILE:-}${SSL_CERT_DIR:-}" ] || [ -s /etc/ssl/certs/ca-certificates.crt ] ||
        [ -s /etc/pki/tls/certs/ca-bundle.crt ] || [ -s /etc/ssl/cert.pem ]
}

# Tests start servers of their own from the programs that Debian's packages put
# there. The package's own server, which it may start, is not used.
has_postgresql() {
    local dir
    for dir in /usr/lib/postgresql/*/bin; do
        if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then return 0; fi
    done
    return 1
}

# Tests start sshd, libvirtd and QEMU of their own, in namespaces. What else is
# here builds the guests' disks (hack/kvm). These are the names of Debian 12 and 13.
kvm_packages=(
    libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-daemon-config-network libvirt-clients
    qemu-system-x86 qemu-utils ovmf openssh-server openssh-client dnsmasq-base iptables iproute2
    mmdebstrap dpkg-dev binutils mtools dosfstools fdisk e2fsprogs cpio zstd libxml2-utils
)
if grep -qs '^VERSION_ID="\?1[3-9]' /etc/os-release; then
    kvm_packages+=(libvirt-daemon-driver-storage-logical) # part of libvirt-daemon before
fi
missing_kvm() {
    local p
    for p in "${kvm_packages[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
    done
}

# The examples of docs/crawlers.md run with what Debian has. Node may have come
# from elsewhere, with an npm of its own that Debian's would not stand beside.
missing_crawlers() {
    local p
    for p in curl jq python3 python3-requests python3-scrapy chromium; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
    done
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
}

packages=()
quiet=
for need in "$@"; do
    case $need in
    go)
        command -v go >/dev/null || {
            say "Go $need_go or newer is needed and no go command is in PATH; see https://go.dev/doc/install"
            exit 1
        }
        # In a module folder an older go command fetches the version that go.mod asks for.
        have=$(go env GOVERSION) || {
            say "this go command cannot work with go.mod; Go $need_go or newer is needed, see https://go.dev/doc/install"
            exit 1
        }
        if [ "$(printf '%s\n' "$need_go" "${have#go}" | sort -V | head -n 1)" != "$need_go" ]; then
            say "Go $need_go or newer is needed, this is $have; see https://go.dev/doc/install"
            exit 1
        fi
        ;;
    cc) has_cc || packages+=(gcc libc6-dev) ;;
    curl) command -v curl >/dev/null || packages+=(curl) ;;
    certs) has_certs || packages+=(ca-certificates) ;;
    python) command -v python3 >/dev/null || packages+=(python3) ;;
    postgresql) has_postgresql || packages+=(postgresql) ;;
    kvm)
        while IFS= read -r p; do packages+=("$p"); quiet=yes; done < <(missing_kvm)
        ;;
    crawlers)
        while IFS= read -r p; do packages+=("$p"); done < <(missing_crawlers)
        ;;
    *)
        say "unknown need: $need (go, cc, curl, certs, postgresql, kvm, crawlers)"
        exit 2
        ;;
    esac
done
[ ${#packages[@]} -gt 0 ] || exit 0

line="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
become=()
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        become=(sudo -n)
    else
        say "missing: ${packages[*]}. Type this, then start again:"
        as_root="su -c"
        command -v sudo >/dev/null && as_root="sudo sh -c"
        printf "  %s '%s'\n" "$as_root" "$line" >&2
        exit 1
    fi
fi
if ! command -v apt-get >/dev/null; then
    say "missing: ${packages[*]} (Debian's names), and there is no apt-get here. Install them with this system's package manager, then start again."
    exit 1
fi
say "installing ${packages[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The packages' own libvirtd, sshd and so on are not wanted: while they are
# installed, Debian asks this program whether a service may start.
policy=/usr/sbin/policy-rc.d
if [ -n "$quiet" ] && ! [ -e "$policy" ]; then
    trap 'rm -f "$log"; "${become[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${become[@]}" tee "$policy" >/dev/null
    "${become[@]}" chmod 755 "$policy"
fi
run() { "${become[@]}" env DEBIAN_FRONTEND=noninteractive timeout 600 "$@" >>"$log" 2>&1; }
if ! run apt-get -o DPkg::Lock::Timeout=120 update ||
    ! run apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "${packages[@]}"; then
    cat "$log" >&2
    say "that failed. Type this, then start again:"
    printf '  %s\n' "$line" >&2
    exit 1
fi
if [[ " ${packages[*]} " == *" gcc "* ]] && ! has_cc; then
    say "gcc and libc6-dev are installed, but the go command's C compiler, '$(cc_name)' (go env CC), still builds no program. To use gcc: export CC=gcc"
    exit 1
fi
