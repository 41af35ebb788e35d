from magnetar.deploy.tour import read_flights
from tests.flights import read_flights as read_all_flights


def test_the_tour_has_a_few_thousand_flights_of_many_carriers() -> None:
    flights = read_flights()
    assert len(flights) == 5_000
    assert len({flight.carrier for flight in flights}) > 10


def test_the_slice_is_the_beginning_of_the_whole_unchanged() -> None:
    assert [flight.line for flight in read_flights()] == list(read_all_flights(5_000))
