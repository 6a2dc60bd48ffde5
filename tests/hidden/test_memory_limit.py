"""A target whose weights are more than four times the memory that the process may take.

Its layers are zeros (the files are holes), so each hands on what it gets: the states at every tap
must be the rows of the embedding.
"""

import json
import math
import subprocess
import sys

import pipeline
import pytest
import qwen36
import torch
import transformers

from draftlab.hidden.store import HiddenStore

LIMIT_BYTES = 600 << 20
LAYERS, HIDDEN, VOCAB = 24, 1024, 32000
TEXTS = [(40, 60), (50, 50), (3, 90)]

LIMITED = """
import json, resource, sys, threading, time
from pathlib import Path
import torch
from draftlab.hidden.capture import carry_out, plan_capture
from draftlab.reference.completions import Reference
from draftlab.target.compute import Compute

def own_bytes():
    rows = dict(line.split(":") for line in open("/proc/self/status"))
    return int(rows["RssAnon"].split()[0]) * 1024

def watch():
    while True:
        seen.append(own_bytes())
        time.sleep(0.002)

root, limit = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
seen = [own_bytes()]
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
compute = Compute(device="cpu", dtype="float32", threads=1)
reference = Reference.open(root / "ref")
plan = plan_capture(reference, root / "target", (1, 12, 23), root / "store", compute)
threading.Thread(target=watch, daemon=True).start()
carry_out(plan)
print(json.dumps({"grown": max(seen) - seen[0], "needs": plan.estimate.stream.model_dump()}))
"""


def write_target(folder):
    """Qwen3 of 2.8 GiB in float32, as bfloat16 files that take no disk; and some embedding rows."""
    folder.mkdir()
    config = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=8192, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=4, head_dim=128, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, architectures=["Qwen3ForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    first = "model.embed_tokens.weight"
    shapes = {first: shapes.pop(first), **shapes}
    qwen36.write_hole(folder / "model.safetensors", shapes)
    rows = torch.randn(150, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()
    with (folder / "model.safetensors").open("r+b") as file:
        header = int.from_bytes(file.read(8), "little")
        file.seek(8 + header)
        file.write(rows.view(torch.uint8).numpy().tobytes())
    return rows.float(), 4 * sum(map(math.prod, shapes.values()))


@pytest.mark.slow
def test_it_is_captured_within_one_and_a_half_layers_and_the_buffers_that_were_named(tmp_path):
    rows, weight_bytes = write_target(tmp_path / "target")
    assert weight_bytes >= 4 * LIMIT_BYTES
    reference = pipeline.made_up_reference(tmp_path / "ref", tmp_path / "target", TEXTS)
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(LIMIT_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "do not fit into" in found["needs"]["why"]
    allowed = 1.5 * found["needs"]["layer_bytes"] + found["needs"]["buffer_bytes"]
    assert found["grown"] <= allowed + found["needs"]["held_bytes"], found
    store = HiddenStore.open(tmp_path / "store")
    for i, row in enumerate(reference.completions):
        ids = torch.tensor(row.prompt_ids + row.completion_ids)[:-1]
        assert torch.equal(store.read(i).taps_SC, rows[ids].repeat(1, 3))
        assert store.read(i).logprobs_n.allclose(torch.tensor(-math.log(VOCAB)))
