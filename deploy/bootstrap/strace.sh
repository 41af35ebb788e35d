#!/bin/sh
# Make sure that strace is there: a test looks at what a bookie asks of the kernel.
set -eu

command -v strace >/dev/null 2>&1 && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing strace for the tests."
    apt-get update -qq
    if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends strace >/dev/null 2>&1; then
        exit 0
    fi
    echo "apt-get could not install strace; run it by hand to see why: apt-get install strace" >&2
    exit 1
fi
echo "The tests need strace. Install it: sudo apt-get install strace" >&2
exit 1
