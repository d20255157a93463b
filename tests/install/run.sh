#!/usr/bin/env bash
# Carry out an installation on a whole emulated machine: run.sh helper|docker [FOLDER].
#
# Debian 13 with systemd, a kernel of its own and control groups of version 2 alone runs in QEMU's emulator: some ten times
# slower than this machine. It is Slurm's controller, the only compute node, and control's machine at once. The packages are
# installed there, `glean setup` does the rest; a job is saved, restored, and goes on after a reboot in the middle of a slice;
# then all is taken back. FOLDER (test-output/install-WAY) gets the transcript and the console. With DISK=PLACE the machine
# is made there if it is not yet, and stays: another run starts from it again, as it was before its first start.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../deploy/lib.sh"

case ${1:-} in helper | docker) way=$1 ;; *) die "usage: run.sh helper|docker [FOLDER]" ;; esac
out=${2:-$repo_dir/test-output/install-$way}
limit_s=${LIMIT_S:-7200}
as_root
for program in qemu-system-x86_64 mmdebstrap mkfs.ext4; do
    command -v $program >/dev/null || die "$program is missing: apt-get install qemu-system-x86 mmdebstrap e2fsprogs"
done
mkdir -p "$out"
disk=${DISK:-}
if [ -z "$disk" ]; then
    disk=$(mktemp -d /var/tmp/gleaner-install-XXXXXX)
    trap 'rm -rf "$disk"' EXIT
fi
mkdir -p "$disk"
samples=150000000

make_disk() {
    say "packages"
    "$repo_dir/packaging/build.sh" "$disk/packages" >"$out/build.log"
    say "image of the job, and the result of an uninterrupted run"
    "$repo_dir/deploy/engine.sh" start >>"$out/build.log"
    "$repo_dir/images/build.sh" --only pi >>"$out/build.log"
    docker save gleaner/pi:demo -o "$disk/pi.tar"
    mkdir "$disk/twin"
    echo $samples >"$disk/twin/samples"
    docker run --rm --network none -v "$disk/twin:/job" --workdir /job gleaner/pi:demo \
        --samples $samples --seed 1 --out /job >>"$out/build.log"
    say "the machine's disk"
    local included=linux-image-amd64,systemd-sysv,dbus,udev,iproute2,kmod,procps,openssl,munge,slurmctld,slurmd,slurm-client
    included+=,criu,runc,tar,gzip,slurm-wlm-basic-plugins,slurm-wlm-jwt-plugin,slurmdbd,mariadb-server,python3
    [ "$way" = helper ] || included+=,docker.io,docker-cli,iptables
    mmdebstrap --quiet --variant=minbase --mode=root --include="$included" --dpkgopt=force-unsafe-io \
        --customize-hook='mkdir -p "$1/srv/install"' \
        --customize-hook="copy-in $disk/packages $disk/pi.tar $disk/twin $here/machine /srv/install" \
        --customize-hook="chroot \"\$1\" sh -e /srv/install/machine/prepare.sh $way" \
        trixie "$disk/tree.tar" "$(mirror)" >>"$out/build.log" 2>&1 || {
        tail -n 25 "$out/build.log" >&2
        die "the machine could not be made"
    }
    mkdir "$disk/tree"
    tar -C "$disk/tree" --numeric-owner -xf "$disk/tree.tar"
    truncate -s 8G "$disk/new.img"
    mkfs.ext4 -q -F -d "$disk/tree" "$disk/new.img"
    cp "$disk"/tree/boot/vmlinuz-* "$disk/vmlinuz"
    cp "$disk"/tree/boot/initrd.img-* "$disk/initrd"
    rm -rf "$disk/tree" "$disk/tree.tar" "$disk/packages" "$disk/pi.tar" "$disk/twin"
    mv "$disk/new.img" "$disk/disk.img"
}
[ -e "$disk/disk.img" ] || make_disk

say "the machine runs; see $out/console.log"
began_s=$SECONDS
timeout "$limit_s" qemu-system-x86_64 -accel tcg,thread=multi -cpu Nehalem -smp 2 -m 3072 -nographic -nic none \
    -kernel "$disk/vmlinuz" -initrd "$disk/initrd" \
    -append "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0 hostname=machine" \
    -drive "file=$disk/disk.img,format=raw,if=virtio,cache=unsafe,snapshot=on" </dev/null >"$out/console.log" 2>&1 ||
    say "the emulator has ended with $?"
sed -n 's/\r$//; s/^.*TRANSCRIPT\(\[[0-9]*\]\)\?: \?//p' "$out/console.log" >"$out/transcript.txt"
say "$((SECONDS - began_s)) s; the transcript is in $out/transcript.txt"
grep -qx "ALL IS AS IT SHOULD BE" "$out/transcript.txt" || { tail -n 15 "$out/transcript.txt"; die "it did not end well"; }
say "$way: all is as it should be"
