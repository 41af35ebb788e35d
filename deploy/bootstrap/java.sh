#!/bin/sh
# Make sure that a Java runtime 17 or newer is there: `make cluster` and the tests run a real ZooKeeper server.
set -eu

java_version() {
    # The first line reads: openjdk version "17.0.15" 2025-04-15
    "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

for candidate in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java; do
    if command -v "$candidate" >/dev/null 2>&1; then
        version=$(java_version "$candidate" || true)
        [ -n "$version" ] && [ "$version" -ge 17 ] && exit 0
    fi
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing a Java runtime for ZooKeeper."
    apt-get update -qq
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1; then
            exit 0
        fi
    done
    echo "apt-get could not install a Java runtime; run it by hand to see why: apt-get install default-jre-headless" >&2
    exit 1
fi
echo "ZooKeeper needs a Java runtime, 17 or newer. Install one: sudo apt-get install openjdk-17-jre-headless (or set JAVA_HOME)" >&2
exit 1
