"""The short form; `make model` runs the long one."""

from hypothesis import settings

from tests.property.broker.against_model.model import FAILOVER, KEY_SHARED, SHARED
from tests.property.broker.against_model.story import Story

TestStory = Story.TestCase
TestStory.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


def subscribe(story: Story, client: int, name: str, sub_type: int, permits: int) -> None:
    story.subscribe(
        topic=1,
        client=client,
        name=name,
        sub_type=sub_type,
        is_durable=True,
        is_earliest=True,
        is_unordered=False,
        permits=permits,
    )


def test_consumers_that_leave_together_may_leave_a_subscription_at_its_limit() -> None:
    """What the first of them had is sent to a third one before the second has left."""
    story = Story()
    story.begin(topic=0, sub_type=SHARED, others=[0, 0], permits=10, batches=[1] * 5)
    subscribe(story, 2, "c", SHARED, 10)
    subscribe(story, 2, "c", SHARED, 10)
    subscribe(story, 1, "a", FAILOVER, 0)
    story.produce(topic=1, client=2, batches=[1, 5, 1, 1, 5], key="red")
    subscribe(story, 0, "c", SHARED, 1000)
    story.produce(topic=1, client=0, batches=[5, 3], key="green")
    story.disconnect(client=2, is_sure=True)
    story.teardown()


def test_who_is_about_to_lose_its_subscription_may_get_what_another_one_had() -> None:
    """A forced UNSUBSCRIBE takes away the consumer that asked first, then the others."""
    story = Story()
    story.begin(topic=0, sub_type=KEY_SHARED, others=[0, 0], permits=10, batches=[1, 1, 70, 1, 1])
    story.unsubscribe(which=8, is_forced=True, is_sure=True)
    story.teardown()
