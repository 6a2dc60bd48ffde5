"""How much memory there is: the smallest limit counts, and the page cache is not used up."""

import resource
from pathlib import Path

import pytest

from draftlab.base import memory
from draftlab.base.memory import NO_LIMIT_BYTES, available_bytes, group_room, is_memory_backed

GIB = 1 << 30


def test_a_container_of_90_gib_on_a_host_of_one_terabyte_has_90_gib():
    assert group_room("96636764160\n", "0\n", "") == 90 * GIB


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n"])
def test_a_group_without_a_limit_limits_nothing(text):
    assert group_room(text, f"{3 * GIB}", "") == NO_LIMIT_BYTES


def test_page_cache_in_a_group_can_be_taken_back():
    used = f"anon {2 * GIB}\ninactive_file {GIB}\nactive_file {2 * GIB}\n"
    assert group_room(f"{10 * GIB}", f"{5 * GIB}", used) == 8 * GIB
    version_1 = f"inactive_file 0\ntotal_inactive_file {GIB}\ntotal_active_file 0\n"
    assert group_room(f"{10 * GIB}", f"{5 * GIB}", version_1) == 6 * GIB


def test_a_ulimit_counts(monkeypatch):
    free = available_bytes()
    assert 0 < free < 1 << 50
    used = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024

    def limited(which):
        soft = used + 5_000_000 if which == resource.RLIMIT_DATA else resource.RLIM_INFINITY
        return soft, resource.RLIM_INFINITY

    monkeypatch.setattr(memory.resource, "getrlimit", limited)
    assert 0 < available_bytes() < 6_000_000


def test_a_folder_in_memory_is_told_from_one_on_a_disk(tmp_path):
    mounts = f"/dev/sda1 / ext4 rw 0 0\ntmpfs {tmp_path} tmpfs rw 0 0\n"
    assert is_memory_backed(tmp_path / "store", mounts)
    assert not is_memory_backed(tmp_path.parent, mounts)
    assert not is_memory_backed(tmp_path, "")
