"""Flags as Linux lists them on four kinds of processors."""

import cpuinfo
import pytest

from draftlab.base.cpu import flags_of, native_bfloat16, read_flags


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        (cpuinfo.HASWELL, None),
        (cpuinfo.SAPPHIRE_RAPIDS, "amx_bf16"),
        (cpuinfo.GENOA, "avx512_bf16"),
        (cpuinfo.GRAVITON_3, "bf16"),
        (cpuinfo.GRAVITON_2, None),
        ("", None),
    ],
)
def test_native_bfloat16_is_told_by_its_flag(text, flag):
    assert native_bfloat16(flags_of(text)) == flag


def test_a_flag_counts_only_if_every_processor_has_it():
    assert native_bfloat16(flags_of(cpuinfo.GRAVITON_3 + "\n" + cpuinfo.GRAVITON_2)) is None
    assert "asimd" in flags_of(cpuinfo.GRAVITON_3 + "\n" + cpuinfo.GRAVITON_2)


def test_a_model_name_is_no_flag():
    assert (
        native_bfloat16(flags_of("model name\t: the bf16 amx_bf16 machine\nflags\t\t: fpu")) is None
    )


def test_this_machine_is_read():
    assert read_flags() >= {"fpu"} or read_flags() >= {"fp"} or read_flags() == frozenset()
