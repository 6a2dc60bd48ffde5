"""Servers on loopback that give hidden states: SGLang's and vLLM's replies over a tiny target.

States and log-probabilities are transformers' own (`output_hidden_states`, log_softmax), so they
are true unless a test bends them. Imports nothing of draftlab.
"""

import fcntl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import servers
import tiny
import torch
from safetensors.torch import save_file

States = Callable[[list[int]], torch.Tensor]


class Model:
    """A target that gives the outputs of layers [T, taps, H] and the log-probabilities [T, V]."""

    def __init__(self, folder: Path, layers: tuple[int, ...], dtype=torch.float32) -> None:
        self.model = tiny.load_target(folder).to(dtype)
        self.layers = layers
        self.bend: Callable[[list[int], torch.Tensor], torch.Tensor] = lambda ids, states: states
        self.lock = threading.Lock()
        self.last: list[torch.Tensor] = []
        self.model.model.norm.register_forward_pre_hook(lambda _, given: self.last.append(given[0]))

    def __call__(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        with self.lock, torch.inference_mode():
            out = self.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
            # hidden_states[k + 1] is the output of layer k; of the last one it is the normed one.
            outputs = [*out.hidden_states[1:-1], self.last.pop()]
        states = torch.stack([outputs[k][0] for k in self.layers], dim=1)
        return self.bend(ids, states), out.logits[0].float().log_softmax(dim=-1)


def ranked(logprobs_V: torch.Tensor, count: int) -> list[tuple[float, int]]:
    best = logprobs_V.topk(count)
    return list(zip(best.values.tolist(), best.indices.tolist(), strict=True))


def sglang(
    model: Model, *, ids_stated: tuple[int, ...] | None = None, nested: bool = True
) -> servers.FakeServer:
    """Answers as SGLang 0.5.23 started with --return-aux-hidden-state-layer-ids.

    Its Python server puts a prefill's vectors into one list within the list; its API types have
    them side by side.
    """
    plain = servers.sglang()

    def post(path, body):
        if path != "/generate" or not body.get("return_hidden_states"):
            return plain.post(path, body)
        ids = body["input_ids"]
        states, logprobs = model(ids)
        vectors = states.flatten(1).float().tolist()
        meta = {
            "id": "x",
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "cached_tokens": 0,
            "hidden_states": [vectors] if nested else vectors,
        }
        if body["return_logprob"] and body["logprob_start_len"] == 0:
            before = logprobs[:-1]
            own = [(None, ids[0], None)]
            own += [(float(row[i]), i, None) for row, i in zip(before, ids[1:], strict=True)]
            top = [None]
            top += [
                [[value, i, None] for value, i in ranked(row, body["top_logprobs_num"])]
                for row in before
            ]
            meta |= {"input_token_logprobs": own, "input_top_logprobs": top}
        said = {"text": "?", "output_ids": [1], "meta_info": meta, "prompt_token_ids": ids}
        return 200, said

    server = servers.FakeServer(plain.get, post)
    if ids_stated is not None:
        server.get["/server_info"] = {
            **server.get["/server_info"],
            "return_aux_hidden_state_layer_ids": list(ids_stated),
        }
    return server


def vllm(model: Model, folder: Path, *, write_seconds: float = 0.0) -> servers.FakeServer:
    """Answers as vLLM 0.32.0 with extract_hidden_states; the reply may come before the file."""
    plain = servers.vllm()
    number = iter(range(1_000_000))

    def write(path: Path, ids: list[int], states: torch.Tensor) -> None:
        lock = path.with_name(path.name + ".lock")
        with lock.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            path.write_bytes(b"not yet")
            time.sleep(write_seconds)
            save_file({"token_ids": torch.tensor(ids), "hidden_states": states.contiguous()}, path)

    def post(path, body):
        if "prompt_logprobs" not in body:
            return plain.post(path, body)
        ids = body["prompt"]
        states, logprobs = model(ids)
        file = folder / f"cmpl-{next(number)}.safetensors"
        writer = threading.Thread(target=write, args=(file, ids, states))
        writer.start()
        if not write_seconds:
            writer.join()
        scores: list = [None]
        for row, token in zip(logprobs[:-1], ids[1:], strict=True):
            entry = {str(token): {"logprob": float(row[token]), "rank": 9, "decoded_token": "?"}}
            for rank, (value, i) in enumerate(ranked(row, body["prompt_logprobs"]), start=1):
                entry[str(i)] = {"logprob": value, "rank": rank, "decoded_token": "?"}
            scores.append(entry)
        choice = {"index": 0, "text": "?", "finish_reason": "length", "prompt_logprobs": scores}
        transfer = {"hidden_states_path": str(file)}
        return 200, {"choices": [choice], "kv_transfer_params": transfer}

    return servers.FakeServer(plain.get, post)
