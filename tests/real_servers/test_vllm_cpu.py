"""A real vLLM on the CPU, fp32: exact token ids, and hidden states by extract_hidden_states.

Opt-in: `make test-vllm`. The oracle of the ids is transformers' own forward.
"""

import json
from contextlib import contextmanager
from pathlib import Path

import live
import pytest
import tiny
import torch

from draftlab.cli.main import code_of
from draftlab.hidden.store import HiddenStore
from draftlab.reference.completions import Reference

pytestmark = [pytest.mark.server, pytest.mark.slow, live.needs(live.VLLM, "test-vllm")]

HERE = Path(__file__).parent
PAIR = HERE.parents[1] / "draftlab/demo/pair"
NEAR_TIE = 1e-3
LAYERS = (1, 2)
NO_COMPILER = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@contextmanager
def vllm(target, folder, *options, **variables):
    port = live.free_port()
    command = [
        live.VLLM / "bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", target,
        "--host", "127.0.0.1", "--port", port, "--served-model-name", "tiny",
        "--dtype", "float32", "--enforce-eager", "--max-model-len", 512, "--max-num-seqs", 4,
        "--max-num-batched-tokens", 512, *options,
    ]  # fmt: skip
    environment = {
        **NO_COMPILER, "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1", "VLLM_CONFIG_ROOT": str(folder / "config"),
        "VLLM_CACHE_ROOT": str(folder / "cache"), **variables,
    }  # fmt: skip
    with live.serving(command, folder / "log", port=port, **environment) as server:
        yield server


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny.write_wordy_target(tmp_path_factory.mktemp("wordy") / "target", PAIR / "target")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text(
        "".join(json.dumps({"input_ids": ids}) + "\n" for ids in tiny.random_prompts(16))
    )
    return path


def collect(server, target, prompts, out, *options):
    return code_of([
        "reference", "--prompts", str(prompts), "--target", str(target), "--server", server.url,
        "--max-new-tokens", "24", "--ignore-eos", "--concurrency", "4", "--out", str(out), *options,
    ])  # fmt: skip


def require_greedy(target, rows):
    """Every token is the argmax of what stands before it; near-ties may go either way."""
    model = tiny.load_target(target)
    for row in rows:
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1]
        said = logits.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
        assert float((logits.max(dim=-1).values - said).max()) < NEAR_TIE, row.id


def test_token_ids_and_states_are_those_of_the_target_alone(target, prompts, tmp_path, capfd):
    """One server for both: states come with every request of a server that extracts them."""
    files = tmp_path / "files"
    files.mkdir()
    inner = {"eagle_aux_hidden_state_layer_ids": [k + 1 for k in LAYERS]}
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": inner},
    }
    transfer = {
        "kv_connector": "CpuStatesConnector",
        "kv_connector_module_path": "cpu_states_connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(files)},
    }
    options = ["--speculative-config", json.dumps(speculative)]
    options += ["--kv-transfer-config", json.dumps(transfer)]
    capture = [
        "capture", str(tmp_path / "ref"), "--target", str(target), "--threads", "1", "--layers",
    ]  # fmt: skip
    with vllm(target, tmp_path, *options, PYTHONPATH=str(HERE)) as server:
        code = collect(server, target, prompts, tmp_path / "ref", "--verify", "4")
        said = capfd.readouterr()
        assert code == 0, said.err
        for file in files.iterdir():
            file.unlink()
        asking = ["--server", server.url, "--concurrency", "3"]
        assert code_of([*capture, "1,2", *asking, "--out", str(tmp_path / "served")]) == 0
        assert list(files.iterdir()) == []
        wrong = code_of([*capture, "2,3", *asking, "--out", str(tmp_path / "wrong")])
    refused = capfd.readouterr()

    assert "reference: vLLM 0.32.0, model tiny; token ids in and out" in said.err
    rows = Reference.open(tmp_path / "ref").completions
    assert len(rows) == 16
    assert {row.ids_from for row in rows} == {"server"}
    require_greedy(target, rows)
    assert wrong == 1
    assert "outputs of layers 1, 2 where 2, 3 are wanted, shifted by -1." in refused.err
    assert "eagle_aux_hidden_state_layer_ids [3, 4]" in refused.err

    own = [*capture, "1,2", "--dtype", "float32", "--out", str(tmp_path / "own")]
    assert code_of(own) == 0, capfd.readouterr().err
    served, local = (HiddenStore.open(tmp_path / name) for name in ("served", "own"))
    assert served.index.agreement == 1.0
    for i in range(len(local)):
        got, want = served.read(i), local.read(i)
        assert torch.equal(got.tokens_T, want.tokens_T)
        torch.testing.assert_close(got.taps_SC, want.taps_SC, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(got.logprobs_n, want.logprobs_n, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(got.margins_n, want.margins_n, rtol=1e-3, atol=1e-3)
