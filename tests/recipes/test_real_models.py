"""Converted models in the cache: made once, whole or not at all. No model is needed here."""

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from draftlab.base.errors import DraftlabError
from recipes import real_models


@pytest.fixture
def model(monkeypatch, tmp_path):
    """A packaged model whose conversion writes two small files, slowly; it counts how often."""
    made = []

    def dequantise(_gguf, out):
        made.append(out)
        (out / "model.safetensors").write_bytes(b"weights")
        sleep(0.2)
        (out / "config.json").write_text("{}")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(real_models, "_dequantise", dequantise)
    monkeypatch.setattr(real_models.PackagedModel, "installed", property(lambda _self: True))
    return real_models.PackagedModel("pytest", "small", lambda scratch: scratch / "x.gguf"), made


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_whoever_asks_at_the_same_time_waits_for_the_first(model):
    packaged, made = model
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: packaged.folder(), range(4)))
    assert len(made) == 1
    [folder] = folders
    assert files_in(folder) == ["config.json", "digests.json", "model.safetensors"]


@pytest.mark.parametrize("harm", ["cut", "missing", "no digests"])
def test_a_broken_folder_is_made_again(model, harm):
    packaged, made = model
    folder = packaged.folder()
    if harm == "cut":
        (folder / "model.safetensors").write_bytes(b"weig")
    elif harm == "missing":
        (folder / "config.json").unlink()
    else:
        (folder / "digests.json").unlink()
    assert packaged.folder() == folder
    assert len(made) == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert packaged.folder() == folder
    assert len(made) == 2


def test_a_conversion_that_stops_leaves_nothing_that_looks_whole(model, monkeypatch, tmp_path):
    packaged, made = model
    whole = real_models._dequantise  # noqa: SLF001 (the fixture's)

    def stop(gguf, out):
        whole(gguf, out)
        raise KeyboardInterrupt

    monkeypatch.setattr(real_models, "_dequantise", stop)
    with pytest.raises(KeyboardInterrupt):
        packaged.folder()
    monkeypatch.setattr(real_models, "_dequantise", whole)
    folder = packaged.folder()
    assert len(made) == 2
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_a_missing_package_is_named_with_what_to_type():
    absent = real_models.PackagedModel("no-such-package-here", "absent", lambda scratch: scratch)
    with pytest.raises(DraftlabError, match="no-such-package-here") as caught:
        absent.folder()
    assert "pip install" in caught.value.mend
