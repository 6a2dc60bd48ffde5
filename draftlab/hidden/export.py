"""How a server is asked for the hidden states of a row; pure.

In:   a row of a reference.  Out: the request, and the form of what must come back.

The whole row, prompt and completion, goes in as a prompt, so that every state comes from a prefill
and none from speculative decoding; one token is asked for. The log-probabilities of the prompt are
asked for from its first token on: both servers then pass over their prefix caches, which would
leave out the states of the positions in them.

    sglang  POST /generate, return_hidden_states: JSON numbers in meta_info.hidden_states, the
            layers side by side. An id k that the server was started with is the output of layer k,
            as in our --layers (sglang 0.5.23, models/qwen3.py `set_dflash_layers_to_capture`).
    vllm    POST /v1/completions: kv_transfer_params.hidden_states_path names a safetensors file
            with token_ids [T] and hidden_states [T, layers, H]. An id k is the output of layer
            k - 1 (vllm 0.32.0, method extract_hidden_states).

Both meanings are only what mends are written from: what came is compared with the target's own
layers before it is believed (identity.py).

Shape letters: T tokens of a row, H hidden size, C taps x H, n completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import torch
from torch import Tensor

from draftlab.reference.completions import Completion
from draftlab.reference.servers import Request

Exporter = Literal["sglang", "vllm"]
"""Servers that can give hidden states."""

_JSON_NUMBER_BYTES = 26
_BESIDE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row, and the layers whose outputs are wanted."""

    row: Completion
    target_layer_ids: tuple[int, ...]
    hidden_size: int

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens of the row."""
        return self.row.prompt_ids + self.row.completion_ids

    @property
    def width(self) -> int:
        """C: values of one position."""
        return len(self.target_layer_ids) * self.hidden_size


@dataclass(frozen=True, slots=True)
class Exported:
    """What a server gave of one row."""

    states_TC: Tensor
    """Float32, which holds what servers compute in; of every token, the last included."""
    argmax_n: Tensor
    logprobs_n: Tensor
    margins_n: Tensor

    @property
    def is_bfloat16(self) -> bool:
        """Whether every state is a bfloat16 number."""
        return bool(torch.equal(self.states_TC.bfloat16().float(), self.states_TC))


def export_request(exporter: Exporter, model_id: str, ids: Sequence[int]) -> Request:
    """What to send for one row, whose token ids are `ids`."""
    match exporter:
        case "sglang":
            body: dict[str, Any] = {
                "input_ids": list(ids),
                "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
                "return_hidden_states": True,
                "return_logprob": True,
                "logprob_start_len": 0,
                "top_logprobs_num": 2,
                "return_prompt_token_ids": True,
                "stream": False,
            }
            return Request("/generate", body)
        case "vllm":
            body = {
                "model": model_id,
                "prompt": list(ids),
                "max_tokens": 1,
                "temperature": 0.0,
                "ignore_eos": True,
                "prompt_logprobs": 2,
                "stream": False,
            }
            return Request("/v1/completions", body)
        case new_exporter:
            assert_never(new_exporter)


def most_reply_bytes(wanted: Sequence[Wanted]) -> int:
    """How long the longest of these replies may be: states as JSON, and what stands beside."""
    return _BESIDE_BYTES + _JSON_NUMBER_BYTES * max(len(one.ids) * one.width for one in wanted)


def how_to_start(exporter: Exporter, target_layer_ids: Sequence[int]) -> str:
    """What a server must be started with to give these layers."""
    match exporter:
        case "sglang":
            ids = " ".join(map(str, target_layer_ids))
            return (
                "Start it with --enable-return-aux-hidden-states --speculative-algorithm DFLASH "
                f"--return-aux-hidden-state-layer-ids {ids} --chunked-prefill-size -1."
            )
        case "vllm":
            ids = str([k + 1 for k in target_layer_ids])
            return (
                'Start it with the speculative method "extract_hidden_states", '
                f"eagle_aux_hidden_state_layer_ids {ids}, and a --kv-transfer-config whose "
                "connector writes files on this machine (docs/real-servers.md)."
            )
        case new_exporter:
            assert_never(new_exporter)
