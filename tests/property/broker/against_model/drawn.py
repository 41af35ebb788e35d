"""What is drawn for the steps of a story."""

from hypothesis import strategies as st

from tests.property.broker.against_model.checked import CLIENTS, TOPICS
from tests.property.broker.against_model.model import BATCH_MAX

KEYS = ["red", "green", "blue", "grey"]

KEY = st.sampled_from(KEYS)
SMALL = st.integers(0, 11)
TOPIC = st.integers(0, len(TOPICS) - 1)
CLIENT = st.integers(0, CLIENTS - 1)
NAME = st.sampled_from(["a", "b", "c"])
BATCHES = st.lists(st.sampled_from([1, 1, 1, 2, 3, 5, BATCH_MAX]), min_size=1, max_size=5)
PICKS: st.SearchStrategy[list[int]] = st.one_of(
    st.lists(SMALL, min_size=1, max_size=6), st.just([])
)
PERMITS = st.sampled_from([10, 1000, 3, 1])
RARELY = st.integers(0, 7).map(lambda drawn: drawn == 5)
"""For what takes everything away from everybody, and would keep every story short."""
