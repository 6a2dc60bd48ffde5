"""A server's reference goes on to capture, which says what it cannot know."""

import pytest
import servers

from draftlab.cli.main import code_of
from draftlab.hidden.store import HiddenStore
from draftlab.reference.completions import Reference


@pytest.fixture
def honest(small_pair):
    """A server that says what the target itself has said."""
    rows = Reference.open(small_pair.reference).completions
    said = {row.prompt_ids: list(row.completion_ids) for row in rows}
    server = servers.vllm()

    def post(path, body):
        ids = said[tuple(body["prompt"])][: body["max_tokens"]]
        return 200, {"choices": [{"token_ids": ids, "finish_reason": "length"}]}

    server.post = post
    with servers.running(server):
        yield server


def test_capture_takes_a_server_reference_and_leaves_the_target_to_the_agreement(
    honest, small_pair, tmp_path, capsys
):
    made = code_of([
        "reference", "--prompts", str(small_pair.prompts), "--target", str(small_pair.target),
        "--server", honest.url, "--max-new-tokens", "12", "--ignore-eos",
        "--out", str(tmp_path / "ref"),
    ])  # fmt: skip
    captured = code_of([
        "capture", str(tmp_path / "ref"), "--target", str(small_pair.target), "--layers", "1,2",
        "--threads", "1", "--out", str(tmp_path / "store"),
    ])  # fmt: skip
    said = capsys.readouterr()

    assert (made, captured) == (0, 0), said.err
    assert "vLLM 0.32.0, model tiny): whether --target is that model" in said.err
    index = HiddenStore.open(tmp_path / "store").index
    assert index.conditions.same_target == "unknown: server reference"
    assert index.agreement == 1.0
    local = HiddenStore.open(small_pair.store).index
    assert local.conditions.same_target == "checked"
    assert [entry.completion_tokens for entry in index.sequences] == [
        entry.completion_tokens for entry in local.sequences
    ]
