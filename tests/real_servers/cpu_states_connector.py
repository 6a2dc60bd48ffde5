"""vLLM's example connector for hidden states, for a machine without a GPU.

The stock one copies through pinned memory and CUDA events and dies on a CPU ("pin_memory=True
requires a CUDA or other accelerator backend"). Everything else of it stays: which slots of the
cache a request has, file names, locks. Runs inside vLLM's process; imports nothing of draftlab.
"""

import os

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)


class _Written:
    """Stands for the event of a copy that is over."""

    def query(self) -> bool:
        return True


class CpuStatesConnector(ExampleHiddenStatesConnector):
    """Writes at once."""

    def _submit_async_write(self, pending: PendingSave) -> None:
        blocks = torch.tensor(pending.block_ids)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        lock = self._lock_fds.pop(pending.req_id)  # held since before the reply
        try:
            tensors = {"hidden_states": states.contiguous(), "token_ids": pending.token_ids}
            save_file(tensors, pending.filename)
        finally:
            os.close(lock)
        self._req_copy_events[pending.req_id] = _Written()
