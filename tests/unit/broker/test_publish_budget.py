"""The bound on unpersisted publishes of the whole broker."""

from magnetar.broker.topic.publish_limits import PublishBudget


class _Waiter:
    resumed = 0

    def resume_publishing(self) -> None:
        self.resumed += 1


def test_exhausted_at_the_limit_not_below() -> None:
    budget = PublishBudget(100)
    budget.take(99)
    assert not budget.is_exhausted
    budget.take(1)
    assert budget.is_exhausted


def test_everybody_goes_on_when_half_is_free() -> None:
    budget = PublishBudget(100)
    budget.take(120)
    one, two, gone = _Waiter(), _Waiter(), _Waiter()
    for waiter in (one, two, two, gone):
        budget.wait(waiter)
    budget.forget(gone)
    budget.give_back(69)
    assert one.resumed == 0
    budget.give_back(1)
    assert (one.resumed, two.resumed, gone.resumed) == (1, 1, 0)
    budget.give_back(50)
    assert one.resumed == 1
