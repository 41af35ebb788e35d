import pytest

from tests.words import docstrings, shape_of


@pytest.mark.parametrize(
    "docstring",
    [
        "The same for topics.",
        "Likewise.",
        "Ditto, of bytes.",
        "Of those two.",
        "As `owner_of`, for a bundle.",
        "The one before.",
        "It sends what it has.",
        "Which ledgers may go.",
    ],
)
def test_a_docstring_that_leans_on_another_is_found(docstring: str) -> None:
    assert shape_of(docstring) is not None


@pytest.mark.parametrize(
    "docstring",
    [
        "Message and byte rates of this topic.",
        "As many retries as the settings allow.",
        "Return the owner of a bundle, as `owner_of` does for a topic.",
        "Itemise what a broker owns.",
        "The other brokers of the cluster.",
    ],
)
def test_a_docstring_that_stands_alone_is_not(docstring: str) -> None:
    assert shape_of(docstring) is None


def test_docstrings_of_attributes_are_read_too_and_other_strings_are_not() -> None:
    source = '''"""Module."""
LIMIT = 3
"""Attribute."""
print()
"""No docstring."""
class Kind:
    """Class."""
    def method(self):
        """Method."""
'''
    assert [text for _, text in docstrings(source)] == [
        "Module.",
        "Attribute.",
        "Class.",
        "Method.",
    ]
