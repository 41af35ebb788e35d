#!/bin/sh
# Fetch the linters of the files in deploy/ that are no Python packages: linters.sh DIRECTORY
#
# promtool is in Debian's package prometheus, which is unpacked into the directory and not installed:
# installing it would start a server. systemd-analyze is in systemd, which is installed if it is
# missing (nothing starts by that). What is on the PATH already is used as it is.
set -eu

target=$1

have() {
    command -v "$1" >/dev/null 2>&1 || [ -x "$target/$1" ]
}

refuse() {
    echo "The tests need $1. Install the package that has it; on Debian: sudo apt-get install $2" >&2
    exit 1
}

if ! have promtool; then
    command -v dpkg-deb >/dev/null 2>&1 || refuse promtool prometheus
    echo "Fetching promtool for the tests."
    mkdir -p "$target"
    staging=$(mktemp -d)
    trap 'rm -rf "$staging"' EXIT
    cd "$staging"
    if ! apt-get download -qq prometheus >/dev/null 2>&1; then
        [ "$(id -u)" = 0 ] || refuse promtool prometheus
        apt-get update -qq
        apt-get download -qq prometheus >/dev/null 2>&1 || refuse promtool prometheus
    fi
    dpkg-deb -x prometheus_*.deb unpacked
    cd - >/dev/null
    cp "$staging/unpacked/usr/bin/promtool" "$target/promtool"
fi

if ! have systemd-analyze; then
    [ "$(id -u)" = 0 ] || refuse systemd-analyze systemd
    command -v apt-get >/dev/null 2>&1 || refuse systemd-analyze systemd
    echo "Installing systemd-analyze for the tests."
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd >/dev/null 2>&1 \
        || refuse systemd-analyze systemd
fi
