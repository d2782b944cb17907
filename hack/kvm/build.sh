#!/usr/bin/env bash
# Builds the images of guests into WORK/out, from Debian's packages and WORK/init; images.sh calls it. It uses neither
# loop devices nor mounts of its own.
#
# usage: hack/kvm/build.sh WORK
set -euo pipefail
work=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
suite=bookworm
tree=$work/tree
out=$work/out
mkdir -p "$out/repository"
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
trap 'echo "build.sh: line $LINENO failed" >&2' ERR

# A whole system, yet without the guest agent. What the agent needs beside it is downloaded and not installed.
debian_tree() {
    local packages=(
        linux-image-cloud-amd64 systemd-sysv systemd-boot-efi initramfs-tools udev dbus kmod zstd e2fsprogs
        cloud-init cloud-guest-utils iproute2 ca-certificates openssh-server squid
    )
    # shellcheck disable=SC2016 # the hooks' own shell expands $1
    mmdebstrap --mode=root --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
        --aptopt='Acquire::Retries "3"' --dpkgopt='force-unsafe-io' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/i18n/*' \
        --dpkgopt='path-exclude=/usr/share/squid-langpack/*' \
        --setup-hook='mkdir -p "$1/etc/initramfs-tools/conf.d"; cp '"$here"'/debian/initramfs.conf "$1/etc/initramfs-tools/conf.d/guest.conf"' \
        --essential-hook='mkdir -p "$1/etc/initramfs-tools"; cp '"$here"'/debian/initramfs.modules "$1/etc/initramfs-tools/modules"' \
        --customize-hook='rm -f "$1"/var/cache/apt/archives/*.deb' \
        --customize-hook='APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --yes --download-only install qemu-guest-agent' \
        --customize-hook='mv "$1"/var/cache/apt/archives/*.deb '"$out"'/repository/' \
        "$suite" "$tree" ${FLEETDESK_KVM_MIRROR:+"$FLEETDESK_KVM_MIRROR"}
}

# A flat repository: "deb [trusted=yes] http://…/ ./".
repository() {
    cd "$out/repository"
    local f
    for f in *_[0-9]*%3a*; do # an epoch's colon: quoted once too often or once too little on its way
        [ ! -e "$f" ] || mv "$f" "${f%%_*}_${f#*%3a}"
    done
    dpkg-scanpackages --multiversion . >Packages
    {
        printf 'Origin: tests\nLabel: tests\nSuite: %s\nArchitectures: amd64\nComponents: main\nDate: %s\nSHA256:\n' \
            "$suite" "$(date -u -R | sed 's/+0000/UTC/')"
        printf ' %s %s Packages\n' "$(sha256sum <Packages | cut -d' ' -f1)" "$(stat -c %s Packages)"
    } >Release
    cd "$work"
}

# One kernel image that UEFI starts by itself. usage: uki OSREL CMDLINE INITRD OUT
uki() {
    printf '%s' "$2" >"$work/cmdline"
    objcopy --add-section .osrel="$1" --change-section-vma .osrel=0x20000 \
        --add-section .cmdline="$work/cmdline" --change-section-vma .cmdline=0x30000 \
        --add-section .linux="$kernel" --change-section-vma .linux=0x2000000 \
        --add-section .initrd="$3" --change-section-vma .initrd=0x3000000 \
        "$stub" "$4"
}

# A GPT disk: a partition for UEFI with that kernel image and, when ROOT is given, a file system made of that folder.
# usage: disk UKI OUT.qcow2 [ROOT MIB]
disk() {
    local raw=$work/disk.raw esp=$work/esp.img mib=$((($(stat -c %s "$1") >> 20) + 8))
    [ "$mib" -ge 36 ] || mib=36 # FAT32's least
    rm -f "$raw" "$esp"
    truncate -s $((mib + ${4:-0} + 2))M "$raw"
    {
        printf 'label: gpt\nstart=1MiB, size=%dMiB, type=U\n' "$mib"
        [ -z "${3:-}" ] || printf 'start=%dMiB, size=%dMiB, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709\n' $((mib + 1)) "$4"
    } | sfdisk -q "$raw"
    truncate -s "${mib}M" "$esp"
    mkfs.vfat -F 32 -n ESP "$esp"
    mmd -i "$esp" ::/EFI ::/EFI/BOOT
    mcopy -i "$esp" "$1" ::/EFI/BOOT/BOOTX64.EFI
    dd if="$esp" of="$raw" bs=1M seek=1 conv=notrunc,sparse status=none
    if [ -n "${3:-}" ]; then
        # Without what kernels and tools of the two releases do not share.
        mke2fs -q -t ext4 -L root -O ^metadata_csum_seed,^orphan_file \
            -E offset=$(((mib + 1) << 20)),root_owner=0:0 -d "$3" "$raw" "${4}M"
    fi
    qemu-img convert -f raw -O qcow2 -c "$raw" "$2"
    rm -f "$raw" "$esp"
}

# The tiny guest: the kernel, drivers, init, and squid with its libraries.
tiny() {
    local root=$work/tiny-root m f lib
    mkdir -p "$root"/{dev,proc,sys,run,tmp,modules,lib64,etc/squid,usr/sbin,usr/lib/squid,usr/share/squid,var/log/squid,var/spool/squid}
    ln -s /run "$root/var/run"
    cp "$work/init" "$root/init"
    for m in virtio_pci virtio_blk virtio_net virtio_console virtio_scsi sr_mod virtio_rng; do
        # A driver that is built into the kernel has no file.
        chroot "$tree" modprobe -S "$version" --show-depends "$m" 2>/dev/null || true
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while IFS= read -r f; do
        cp "$tree/$f" "$root/modules/"
        basename "$f" >>"$root/modules/order"
    done
    cp "$tree/usr/sbin/squid" "$root/usr/sbin/"
    cp "$tree"/usr/lib/squid/{basic_ncsa_auth,log_file_daemon,unlinkd} "$root/usr/lib/squid/"
    cp -r "$tree"/usr/share/squid/{mime.conf,errors,icons} "$root/usr/share/squid/"
    cp "$tree/etc/squid/errorpage.css" "$root/etc/squid/"
    for f in usr/sbin/squid usr/lib/squid/basic_ncsa_auth usr/lib/squid/log_file_daemon; do
        chroot "$tree" ldd "/$f"
    done | awk '/=> \// { print $3 } /^\t\/lib64/ { print $1 }' | sort -u >"$work/libraries"
    printf '%s\n' /lib/x86_64-linux-gnu/lib{nss_files,nss_dns,resolv}.so.2 >>"$work/libraries"
    while IFS= read -r lib; do
        [ -e "$tree$lib" ] || continue
        mkdir -p "$root$(dirname "$lib")"
        cp -L "$tree$lib" "$root$lib"
    done <"$work/libraries"
    cp -r "$here/tiny/." "$root/"
    chown -R 13:13 "$root/var/log/squid" "$root/var/spool/squid" # Debian's user proxy
    (cd "$root" && find . | cpio -o -H newc --quiet | zstd -q -9) >"$work/tiny.initrd"
    printf 'ID=tiny\nNAME=tinyguest\nPRETTY_NAME=tinyguest\nVERSION_ID=1\n' >"$work/tiny.osrel"
    uki "$work/tiny.osrel" "console=ttyS0,115200 net.ifnames=0 panic=-1 quiet tsc=reliable" "$work/tiny.initrd" "$work/tiny.efi"
    disk "$work/tiny.efi" "$out/tiny.qcow2"
}

# Makes a guest of the tree.
furnish() {
    cp -r "$here/debian/root/." "$tree/"
    : >"$tree/etc/machine-id"
    rm -f "$tree/etc/hostname" "$tree/etc/resolv.conf" "$tree/etc/ssh/"ssh_host_* "$tree/etc/apt/sources.list"
    echo guest >"$tree/etc/hostname"
    echo "nameserver 10.99.0.1" >"$tree/etc/resolv.conf"
    rm -rf "$tree/usr/lib/systemd/boot/efi" # it is in the kernel image by now
    rm -f "$tree"/etc/systemd/system/timers.target.wants/*.timer
    chroot "$tree" systemctl --quiet enable systemd-networkd squid ssh
    # What takes seconds under emulation and does nothing for a test. Not systemd-logind: the agent's shutdown asks it.
    chroot "$tree" systemctl --quiet mask systemd-networkd-wait-online systemd-pstore systemd-hwdb-update \
        systemd-update-utmp systemd-update-utmp-runlevel systemd-random-seed systemd-journal-flush systemd-timesyncd \
        modprobe@configfs modprobe@fuse modprobe@drm modprobe@efi_pstore dev-mqueue.mount dev-hugepages.mount \
        sys-kernel-debug.mount sys-kernel-tracing.mount cloud-init-hotplugd.socket getty@tty1 serial-getty@ttyS0 e2scrub_reap
}

debian() {
    disk "$work/debian.efi" "$1" "$tree" 1000
}

debian_tree
repository
version=$(ls "$tree/usr/lib/modules")
kernel=$tree/boot/vmlinuz-$version
stub=$work/stub
cp "$tree/usr/lib/systemd/boot/efi/linuxx64.efi.stub" "$stub"
tiny
uki "$tree/usr/lib/os-release" \
    "root=LABEL=root rw console=tty0 console=ttyS0,115200 net.ifnames=0 quiet systemd.show_status=false systemd.log_level=err random.trust_cpu=on" \
    "$tree/boot/initrd.img-$version" "$work/debian.efi"
# The guest's disk needs neither: they are in the kernel image.
rm -f "$tree"/boot/initrd.img-* "$tree"/boot/vmlinuz-* "$tree"/initrd.img* "$tree"/vmlinuz*
furnish
debian "$out/debian-bare.qcow2"
mkdir "$tree/tmp/debs"
cp "$out/repository/"*.deb "$tree/tmp/debs/"
chroot "$tree" sh -c 'DEBIAN_FRONTEND=noninteractive dpkg --install --force-unsafe-io /tmp/debs/*.deb'
rm -rf "$tree/tmp/debs"
debian "$out/debian.qcow2"
chroot "$tree" dpkg-query -W >"$out/packages"
