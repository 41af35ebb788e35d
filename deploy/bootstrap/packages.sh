#!/bin/sh
# Install packages into a virtual environment: packages.sh DIRECTORY ARGUMENTS, as of `pip install`
#
# uv does it, in a third of pip's time or less: 5 s instead of 23 for the broker, 52 instead of 151 for
# all that the tests need, with nothing cached. pip does it where uv cannot be had or fails, so that
# what users see is pip's error, and where pip is configured for an index of its own, since uv does not
# read pip's configuration.
set -eu

target=$1
shift
python=$target/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1

if ! "$python" -m pip config list | grep -Eq '\.((extra-)?index-url|no-index)='; then
    if [ -x "$target/bin/uv" ] || "$python" -m pip install --quiet 'uv>=0.9,<1' 2>/dev/null; then
        if [ -n "${PIP_CERT:-}" ]; then
            export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"
        fi
        "$target/bin/uv" pip install --quiet --python "$python" "$@" && exit 0
        echo "uv could not install this; pip tries." >&2
    fi
fi
"$python" -m pip install --quiet --use-pep517 "$@" && exit 0
status=$?
echo "Nothing was installed: see above. Without a network, fetch the wheels elsewhere (pip download --dest DIR)," >&2
echo "then have PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR in the environment." >&2
exit $status
