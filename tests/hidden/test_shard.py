"""A shard that is written piece by piece has the bytes of safetensors' own writer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from draftlab.hidden.shard import ShardFile, Slot

TYPES = (torch.float32, torch.int32, torch.bfloat16)


def random_tensors(shapes):
    generator = torch.Generator().manual_seed(0)
    return {
        name: (100 * torch.randn(shape, generator=generator)).to(dtype)
        for name, (dtype, shape) in shapes.items()
    }


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[0-9]{1,3}\.[a-z]{1,4}", fullmatch=True),
        st.tuples(st.sampled_from(TYPES), st.lists(st.integers(1, 5), min_size=1, max_size=2)),
        min_size=1,
        max_size=8,
    )
)
def test_in_any_order_it_becomes_what_save_file_writes(tmp_path_factory, shapes):
    folder = tmp_path_factory.mktemp("shard")
    tensors = random_tensors(shapes)
    save_file(tensors, folder / "theirs")
    ours = ShardFile(folder / "ours", {n: Slot(d, tuple(s)) for n, (d, s) in shapes.items()})
    ours.begin()
    for name in reversed(tensors):
        ours.write(name, tensors[name])
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()
    assert ours.num_bytes == (folder / "theirs").stat().st_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_land_beside_each_other(tmp_path, dtype):
    taps = torch.randn(7, 12).to(dtype)
    shard = ShardFile(tmp_path / "shard", {"0.taps": Slot(dtype, (7, 12))})
    shard.begin()
    for first in (8, 0, 4):
        shard.write_columns("0.taps", first, taps[:, first : first + 4])
    assert torch.equal(load_file(tmp_path / "shard")["0.taps"], taps)


def test_laying_out_again_keeps_what_is_there(tmp_path):
    slots = {"0.taps": Slot(torch.float32, (2, 3))}
    shard = ShardFile(tmp_path / "shard", slots)
    shard.begin()
    shard.write("0.taps", torch.ones(2, 3))
    ShardFile(tmp_path / "shard", slots).begin()
    assert torch.equal(load_file(tmp_path / "shard")["0.taps"], torch.ones(2, 3))
