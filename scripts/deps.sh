#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what building needs and this machine lacks, through the system's package manager (apt, dnf, pacman, brew).
# Asks first, unless it runs as root or CI=true.
# usage: scripts/deps.sh [--check] [--ci]
#   --check   only print what is missing; exit 1 if anything is
#   --ci      also what .ci/run uses: clang, clang-format, qemu-user and a cross compiler for aarch64 (apt only)
set -eu
check=0 ci=0
for argument; do
    case $argument in
    --check) check=1 ;;
    --ci) ci=1 ;;
    -h | --help) sed -n 's/^# \{0,1\}//; 3,7p' "$0"; exit 0 ;;
    *) sed -n 's/^# \{0,1\}//; 3,7p' "$0" >&2; exit 2 ;;
    esac
done

if command -v apt-get >/dev/null 2>&1; then manager=apt
elif command -v dnf >/dev/null 2>&1; then manager=dnf
elif command -v pacman >/dev/null 2>&1; then manager=pacman
elif command -v brew >/dev/null 2>&1; then manager=brew
else manager=none
fi

# One row: what to look for, then its package in apt, dnf, pacman, brew.
#   tool:X is a command, lib:X a pkg-config package.
rows='
tool:cc         gcc              gcc              gcc        gcc
tool:cmake      cmake            cmake            cmake      cmake
tool:ninja      ninja-build      ninja-build      ninja      ninja
tool:pkg-config pkg-config       pkgconf          pkgconf    pkgconf
lib:jansson     libjansson-dev   jansson-devel    jansson    jansson
lib:libpcre2-8  libpcre2-dev     pcre2-devel      pcre2      pcre2
lib:libutf8proc libutf8proc-dev  utf8proc-devel   libutf8proc utf8proc
lib:hwloc       libhwloc-dev     hwloc-devel      hwloc      hwloc
lib:cmocka      libcmocka-dev    libcmocka-devel  cmocka     cmocka
'
ci_rows='
tool:clang                 clang                  - - -
tool:clang-format          clang-format           - - -
tool:objdump               binutils               - - -
tool:qemu-aarch64-static   qemu-user-static       - - -
tool:aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu  - - -
'
[ $ci = 0 ] || rows="$rows$ci_rows"

present() {
    case $1 in
    tool:*) command -v "${1#tool:}" >/dev/null 2>&1 ;;
    lib:*) command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "${1#lib:}" ;;
    esac
}

missing= packages=
while read -r what apt dnf pacman brew; do
    [ -n "$what" ] || continue
    if ! present "$what"; then
        missing="$missing ${what#*:}"
        case $manager in
        apt) package=$apt ;;
        dnf) package=$dnf ;;
        pacman) package=$pacman ;;
        brew) package=$brew ;;
        *) package= ;;
        esac
        [ "$package" = - ] || packages="$packages $package"
    fi
done <<EOT
$rows
EOT

if [ -z "$missing" ]; then
    echo "deps: nothing is missing"
    exit 0
fi
echo "deps: missing:$missing"
if [ $check = 1 ]; then
    [ -z "$packages" ] || echo "deps: $manager packages:$packages"
    exit 1
fi
if [ $manager = none ] || [ -z "$packages" ]; then
    echo "deps: no package manager that this script knows (apt, dnf, pacman, brew) has them; install them by hand" >&2
    exit 1
fi

sudo=
if [ "$(id -u)" != 0 ] && [ $manager != brew ]; then
    sudo=sudo
fi
if [ "$(id -u)" != 0 ] && [ "${CI:-}" != true ]; then
    printf 'deps: install%s with %s? [y/N] ' "$packages" "$manager"
    read -r answer || answer=
    case $answer in
    y | Y | yes) ;;
    *) echo "deps: nothing was installed"; exit 1 ;;
    esac
fi
# shellcheck disable=SC2086
case $manager in
apt)
    $sudo apt-get update -q
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages
    ;;
dnf) $sudo dnf install -y $packages ;;
pacman) $sudo pacman -S --needed --noconfirm $packages ;;
brew) brew install $packages ;;
esac
still=
while read -r what rest; do
    [ -z "$what" ] || present "$what" || still="$still ${what#*:}"
done <<EOT
$rows
EOT
if [ -n "$still" ]; then
    echo "deps: still missing after the installation:$still" >&2
    exit 1
fi
