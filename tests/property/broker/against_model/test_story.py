"""The short form; `make model` runs the long one."""

from hypothesis import settings

from tests.property.broker.against_model.story import Story

TestStory = Story.TestCase
TestStory.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
