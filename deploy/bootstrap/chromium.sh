#!/bin/sh
# Make sure that a Chromium is there: the tests of the console drive one.
set -eu

for candidate in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome; do
    command -v "$candidate" >/dev/null 2>&1 && exit 0
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Chromium for the tests."
    apt-get update -qq
    if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; then
        exit 0
    fi
    echo "apt-get could not install Chromium; run it by hand to see why: apt-get install chromium" >&2
    exit 1
fi
echo "The tests need Chromium. Install it: sudo apt-get install chromium (or set CHROMIUM)" >&2
exit 1
