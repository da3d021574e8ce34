#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what building needs and this machine lacks, through the system's package manager (apt, dnf, pacman, brew).
# Asks first, unless it runs as root or CI=true. What only a part of the project needs is optional: a system that does
# not have it builds the rest.
# usage: scripts/deps.sh [--check] [--tests] [--ci]
#   --check   only print what is missing; exit 1 if anything is that is not optional
#   --tests   also what the tests are built with (cmocka)
#   --ci      also what .ci/run uses: the tests, clang, clang-format, qemu-user and a cross compiler for aarch64, a
#             Vulkan driver that needs no GPU and the SPIR-V tools (apt only)
set -eu
check=0 tests=0 ci=0
for argument; do
    case $argument in
    --check) check=1 ;;
    --tests) tests=1 ;;
    --ci) tests=1 ci=1 ;;
    -h | --help) sed -n 's/^# \{0,1\}//; 3,10p' "$0"; exit 0 ;;
    *) sed -n 's/^# \{0,1\}//; 3,10p' "$0" >&2; exit 2 ;;
    esac
done

if command -v apt-get >/dev/null 2>&1; then manager=apt
elif command -v dnf >/dev/null 2>&1; then manager=dnf
elif command -v pacman >/dev/null 2>&1; then manager=pacman
elif command -v brew >/dev/null 2>&1; then manager=brew
else manager=none
fi

# One row: what to look for, then its package in apt, dnf, pacman, brew.
#   tool:X is a command, lib:X a pkg-config package, header:X a header, driver:X a Vulkan driver's description.
rows='
tool:cc         gcc              gcc              gcc        gcc
tool:cmake      cmake            cmake            cmake      cmake
tool:ninja      ninja-build      ninja-build      ninja      ninja
tool:pkg-config pkg-config       pkgconf          pkgconf    pkgconf
lib:jansson     libjansson-dev   jansson-devel    jansson    jansson
lib:libpcre2-8  libpcre2-dev     pcre2-devel      pcre2      pcre2
lib:libutf8proc libutf8proc-dev  utf8proc-devel   libutf8proc utf8proc
lib:hwloc       libhwloc-dev     hwloc-devel      hwloc      hwloc
'
tests_rows='
lib:cmocka      libcmocka-dev    libcmocka-devel  cmocka     cmocka
'
# Of these, what is missing costs: no GPU is used.
optional_rows='
tool:glslc              glslc         glslc               shaderc           shaderc
header:vulkan/vulkan.h  libvulkan-dev vulkan-headers      vulkan-headers    vulkan-headers
lib:vulkan              libvulkan-dev vulkan-loader-devel vulkan-icd-loader vulkan-loader
'
ci_rows='
tool:clang                 clang                  - - -
tool:clang-format          clang-format           - - -
tool:objdump               binutils               - - -
tool:qemu-aarch64-static   qemu-user-static       - - -
tool:aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu  - - -
tool:spirv-dis             spirv-tools            - - -
driver:lvp                 mesa-vulkan-drivers    - - -
'
[ $tests = 0 ] || rows="$rows$tests_rows"
[ $ci = 0 ] || rows="$rows$ci_rows"

present() {
    case $1 in
    tool:*) command -v "${1#tool:}" >/dev/null 2>&1 ;;
    lib:*) command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "${1#lib:}" ;;
    header:*)
        for prefix in /usr /usr/local /opt/homebrew ${VULKAN_SDK:+"$VULKAN_SDK"}; do
            [ ! -f "$prefix/include/${1#header:}" ] || return 0
        done
        return 1 ;;
    driver:*) ls /usr/share/vulkan/icd.d/"${1#driver:}"* >/dev/null 2>&1 ;;
    esac
}

# Prints those of the rows in $1 that are missing ($2 = names) or their packages here ($2 = packages).
missing_of() {
    while read -r what apt dnf pacman brew; do
        if [ -z "$what" ] || present "$what"; then continue; fi
        case $2:$manager in
        names:*) package=${what#*:} ;;
        packages:apt) package=$apt ;;
        packages:dnf) package=$dnf ;;
        packages:pacman) package=$pacman ;;
        packages:brew) package=$brew ;;
        *) package=- ;;
        esac
        [ "$package" = - ] || printf '%s\n' "$package"
    done <<EOT | sort -u | tr '\n' ' ' | sed 's/ *$//'
$1
EOT
}

missing=$(missing_of "$rows" names) packages=$(missing_of "$rows" packages)
optional=$(missing_of "$optional_rows" names) optional_packages=$(missing_of "$optional_rows" packages)
if [ -z "$missing" ] && [ -z "$optional" ]; then
    echo "deps: nothing is missing"
    exit 0
fi
[ -z "$missing" ] || echo "deps: missing: $missing"
[ -z "$optional" ] || echo "deps: missing, but optional (without it no GPU is used): $optional"
if [ $check = 1 ]; then
    [ -z "$packages$optional_packages" ] || echo "deps: $manager packages: $packages $optional_packages"
    [ -z "$missing" ]
    exit
fi
if [ -n "$missing" ] && [ -z "$packages" ]; then
    echo "deps: no package manager that this script knows (apt, dnf, pacman, brew) has them; install them by hand" >&2
    exit 1
fi
[ -n "$packages$optional_packages" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ] && [ $manager != brew ]; then
    sudo=sudo
fi
if [ "$(id -u)" != 0 ] && [ "${CI:-}" != true ]; then
    printf 'deps: install %s %s with %s? [y/N] ' "$packages" "$optional_packages" "$manager"
    read -r answer || answer=
    case $answer in
    y | Y | yes) ;;
    *)
        echo "deps: nothing was installed"
        [ -z "$missing" ]
        exit ;;
    esac
fi

install_packages() {
    case $manager in
    apt) $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" ;;
    dnf) $sudo dnf install -y "$@" ;;
    pacman) $sudo pacman -S --needed --noconfirm "$@" ;;
    brew) brew install "$@" ;;
    esac
}
[ $manager != apt ] || $sudo apt-get update -q
# shellcheck disable=SC2086
[ -z "$packages" ] || install_packages $packages
# One by one: a system may have some of them only.
for package in $optional_packages; do
    install_packages "$package" || echo "deps: $package could not be installed: no GPU will be used"
done
still=$(missing_of "$rows" names)
if [ -n "$still" ]; then
    echo "deps: still missing after the installation: $still" >&2
    exit 1
fi
