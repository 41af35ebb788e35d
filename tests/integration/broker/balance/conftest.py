"""Both metadata stores, as the tests of the ledger component have them."""

from tests.integration.ledger.conftest import store, stores

__all__ = ["store", "stores"]
