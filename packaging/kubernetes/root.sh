#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Unpacks Debian packages, with all that they need, into a folder: the root of an image.
#   root.sh ARCHITECTURE FOLDER PACKAGE...
# The packages are this machine's Debian's, of any architecture. Nothing of them is run, so nobody
# has to be root. The lists of packages stay beside the folder, for the next one.
set -e
architecture=$1 root=$2 work=$(realpath -m "$2/../apt")
shift 2
rm -rf "$root" "$work/archives"
mkdir -p "$root" "$work/lists/partial" "$work/archives/partial"
: >"$work/status"
apt() {
    apt-get -qq -o APT::Architecture="$architecture" -o APT::Architectures::="$architecture" \
        -o APT::Install-Recommends=false -o APT::Sandbox::User= -o Debug::NoLocking=true \
        -o Dir::State::Lists="$work/lists" -o Dir::State::status="$work/status" \
        -o Dir::Cache="$work" "$@"
}
[ -e "$work/updated" ] || { apt update && : >"$work/updated"; }
apt install --yes --download-only "$@" >/dev/null
for package in "$work"/archives/*.deb; do
    # What configures packages, and GLib, which Python's D-Bus can do without.
    case ${package##*/} in
        dpkg_* | tar_* | gir1.2-* | python3-gi_* | libgirepository* | libglib2* | mount_*) ;;
        *) dpkg-deb --extract "$package" "$root" ;;
    esac
done
for waste in doc man info locale lintian bash-completion zsh; do rm -rf "$root/usr/share/$waste"; done
# What the packages' scripts would have made.
mkdir -p "$root/etc" "$root/run" "$root/tmp" "$root/var"
[ -e "$root/var/run" ] || ln -s ../run "$root/var/run"
echo 'root:x:0:0:root:/:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:
nogroup:x:65534:' >"$root/etc/group"
