#!/bin/sh
# Make a virtual environment with Python 3.11 or newer: venv.sh DIRECTORY
#
# Every candidate on the PATH is really run, because a shim that finds no interpreter behind it is
# still an executable file. A Python without ensurepip (Debian splits it off) is the second choice:
# then the missing package is installed when we may, and named when we may not.
set -eu

target=$1
probe='import sys; sys.exit(sys.version_info < (3, 11))'

candidates() {
    for name in python3.11 python3.12 python3.13 python3.14 python3 python; do
        # `command -v` gives the first match only; a broken shim may hide a good one behind it.
        old_ifs=$IFS
        IFS=:
        for folder in $PATH; do
            [ -x "$folder/$name" ] && echo "$folder/$name"
        done
        IFS=$old_ifs
    done
}

usable=
complete=
for candidate in ${PYTHON:-} $(candidates); do
    "$candidate" -c "$probe" >/dev/null 2>&1 || continue
    usable=${usable:-$candidate}
    if "$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        complete=$candidate
        break
    fi
done

if [ -z "$usable" ]; then
    echo "No Python 3.11 or newer found. Install one, for example: apt-get install python3 python3-venv (or set PYTHON=/path/to/python3)" >&2
    exit 1
fi

if [ -z "$complete" ]; then
    package=$("$usable" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing $package, which makes virtual environments."
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
        complete=$usable
    else
        echo "$usable cannot make virtual environments. Install its venv module: sudo apt-get install $package" >&2
        exit 1
    fi
fi

"$complete" -m venv "$target"
