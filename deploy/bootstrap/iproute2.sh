#!/bin/sh
# Make sure that `ip` and `tc` are there: the drill of the cluster cuts servers off from each other.
# Without them it goes through TCP proxies, and says so; so nothing here fails.
set -eu

command -v ip >/dev/null 2>&1 && command -v tc >/dev/null 2>&1 && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing iproute2 for the drill of the cluster."
    if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2 >/dev/null 2>&1; then
        exit 0
    fi
    echo "apt-get could not install iproute2; the drill of the cluster will use proxies." >&2
    exit 0
fi
echo "No ip and tc: the drill of the cluster will use proxies. To have the real thing: sudo apt-get install iproute2" >&2
