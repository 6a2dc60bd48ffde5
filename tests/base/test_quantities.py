"""How quantities are written."""

import pytest

from draftlab.base.quantities import bytes_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (16 << 30, "16 GiB"),
        (1056450248 * 1024, "1008 GiB"),
        (999.4 * 2**30, "999 GiB"),
        (999.6 * 2**30, "1000 GiB"),
        (1500 * 2**30, "1.465 TiB"),
    ],
)
def test_sizes_have_three_digits_and_no_exponent(num_bytes, text):
    assert bytes_text(num_bytes) == text
