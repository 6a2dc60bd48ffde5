"""What the page is tested on."""

import hostile
import pytest


@pytest.fixture(scope="session")
def written(small_pair, tmp_path_factory) -> hostile.Written:
    """A run on disk."""
    folder = tmp_path_factory.mktemp("written")
    return hostile.write_hostile_run(
        folder, small_pair.store, small_pair.drafter, small_pair.target
    )
