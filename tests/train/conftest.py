"""Stores that training tests share."""

import pytest
import training


@pytest.fixture(scope="session")
def stores(small_pair, tmp_path_factory):
    """Made once."""
    return training.write_stores(tmp_path_factory.mktemp("stores"), small_pair.target)
