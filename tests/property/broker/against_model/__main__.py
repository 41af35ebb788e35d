"""The long form: `python -m tests.property.broker.against_model --steps 100000`."""

import argparse
import logging
import sys
import time

import structlog
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.broker.against_model.story import Story

_STORIES_PER_ROUND = 100
_STEPS_PER_STORY = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="steps in all")
    steps = parser.parse_args().steps
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    began_s = time.monotonic()
    while Story.steps < steps:
        run_state_machine_as_test(
            Story,
            settings=settings(
                max_examples=_STORIES_PER_ROUND,
                stateful_step_count=_STEPS_PER_STORY,
                deadline=None,
                database=None,
            ),
        )
        minutes = (time.monotonic() - began_s) / 60
        sys.stdout.write(f"{Story.steps} steps without a difference, {minutes:.1f} min\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
