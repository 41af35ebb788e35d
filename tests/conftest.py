"""What holds for every test."""

import os

from hypothesis import settings

# A time limit per example fails on a busy machine and says nothing about the code. CI judges
# changes, so it draws the same examples each time; everywhere else, and in `make sim SEED=n`, new
# ones are tried.
settings.register_profile("magnetar", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("magnetar")
