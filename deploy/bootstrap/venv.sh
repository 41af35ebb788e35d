#!/bin/sh
# Make a virtual environment with Python 3.11 or newer: venv.sh DIRECTORY
#
# Every candidate on the PATH is really run, because a shim that finds no interpreter behind it is
# still an executable file. Of those that can make environments the first is taken, unless another is
# clearly faster: how an interpreter was built (profile-guided or not, in a shared library or not)
# decides up to a third of the time that the same work takes, and the first on the PATH is often one
# that a version manager has compiled without. A Python without ensurepip (Debian splits it off) is
# the last choice: then the missing package is installed when we may, and named when we may not.
# PYTHON=/path/to/python3 says which to take.
set -eu

target=$1
# How many percent of the time of the first another may take to be preferred.
fast_enough=85

probe='import sys; sys.exit(sys.version_info < (3, 11) or sys.implementation.name != "cpython")'
version='import platform; print(platform.python_implementation(), platform.python_version())'
# What a broker does all day: calls, small objects, attributes. The better of two, in microseconds.
speed='
import time
class Entry:
    __slots__ = ("size", "sum")
    def __init__(self, size): self.size, self.sum = size, 0
    def add(self, more): self.sum += more; return self.sum
def run():
    start, kept = time.perf_counter(), {}
    for size in range(40000):
        entry = kept[size & 1023] = Entry(size)
        entry.add(size)
    return time.perf_counter() - start
print(round(min(run() for _ in range(2)) * 1e6))
'

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
able=
seen=:
for candidate in ${PYTHON:-$(candidates)}; do
    "$candidate" -c "$probe" >/dev/null 2>&1 || continue
    usable=${usable:-$candidate}
    "$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1 || continue
    # Many names lead to few interpreters.
    real=$("$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))')
    case $seen in *:"$real":*) continue ;; esac
    seen=$seen$real:
    complete=${complete:-$candidate}
    able="$able $candidate=$real"
done

# A shared machine is twice as fast in one second as in the next: each is timed beside the first, again
# and again, and the median of what they take in percent of the first is what counts.
if [ "${able#* *=* *=}" != "$able" ]; then
    faster=$(for _ in 1 2 3 4 5 6 7; do
        for candidate in $able; do
            # Not by its shim, which takes longer than the work.
            echo "$("${candidate#*=}" -c "$speed") ${candidate%%=*}"
        done
    done | awk -v first="$complete" '$2 == first { us = $1; next } { print int($1 * 100 / us), $2 }' |
        sort -k 2,2 -k 1,1n | awk -v fast_enough="$fast_enough" '
            $2 == last { if (++seen == 4) median[$2] = $1; next }
            { last = $2; seen = 1 }
            END {
                least = fast_enough
                for (one in median) if (median[one] < least) { least = median[one]; taken = one }
                if (taken) print taken, least
            }')
    if [ -n "$faster" ]; then
        echo "${faster% *} takes ${faster##* } percent of the time of $complete, and is taken."
        complete=${faster% *}
    fi
fi

if [ -z "$usable" ]; then
    if [ -n "${PYTHON:-}" ]; then
        found=$("$PYTHON" -c "$version" 2>/dev/null) || found="nothing that runs"
        echo "PYTHON=$PYTHON is no CPython 3.11 or newer: it is $found." >&2
        exit 1
    fi
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

# One whose making was broken off may be of another Python, which a second making would leave there.
clear=
if [ -e "$target/pyvenv.cfg" ]; then
    echo "The environment in $target is not complete, and is made anew."
    clear=--clear
fi
echo "The environment in $target is made with $complete, $("$complete" -c "$version")."
"$complete" -m venv $clear "$target"
