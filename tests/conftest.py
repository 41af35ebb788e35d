"""What holds for every test."""

import os
import signal

from hypothesis import settings

from tests.command_server import commands
from tests.processes import fork_servers

# A time limit per example fails on a busy machine and says nothing about the code. CI judges
# changes, so it draws the same examples each time; everywhere else, and in `make sim SEED=n`, new
# ones are tried.
settings.register_profile("magnetar", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("magnetar")

# A shell that starts tests in the background has them ignore Ctrl-C, and with them the processes
# that they start and are to end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# So does nohup with the end of the terminal. The tests live on, by a handler that does nothing: it
# is not handed on to what they start.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

fork_servers(
    lambda arguments, environment, streams: commands().start(arguments, environment, streams)
)
