#!/usr/bin/env python3
"""Ask a server of Magnetar whether it is well: a probe for containers, without curl.

usage: magnetar-health [--alive] URL [URL...]

The first URL at which somebody listens counts. Status 0: it answered 200. With --alive any
answer will do: a server that drains, or waits for the metadata store, must not be restarted.
"""

import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def main(arguments: list[str]) -> int:
    """The exit status; says on stderr what was wrong."""
    is_alive_enough = "--alive" in arguments
    urls = [each for each in arguments if not each.startswith("--")]
    problem = "no URL given"
    # Whatever proxy the environment names: the question is about this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for url in urls:
        try:
            with opener.open(url, timeout=TIMEOUT_S):
                return 0
        except urllib.error.HTTPError as error:
            with error:
                if is_alive_enough:
                    return 0
                text = error.read(500).decode(errors="replace")
            sys.stderr.write(f"{url}: {error.code} {text}\n")
            return 1
        except OSError as error:
            problem = f"{url}: {error}"
    sys.stderr.write(f"{problem}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
