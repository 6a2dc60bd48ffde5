"""draftlab's side of benchmarks/train.py.

python train_draftlab.py PROBLEM DTYPE THREADS
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from child import Problem, serve

from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import TargetEnds
from draftlab.drafter.model import Drafter
from draftlab.train.documents import Document
from draftlab.train.forward import batch_loss
from draftlab.train.options import LossOptions


def main() -> None:
    """Serve steps."""
    folder, dtype, threads = sys.argv[1:]
    problem = Problem.read(Path(folder), dtype)
    drafter = Drafter(DrafterConfig.from_config(problem.shape))
    drafter.load_state_dict(problem.weights)
    table_VH = problem.table_VH.to(problem.dtype, copy=True)
    ends = TargetEnds(table_VH, table_VH, tied=True)
    documents = [
        Document(d["tokens"].clone(), d["taps"][:-1].clone(), problem.prompt_length)
        for d in problem.documents
    ]
    anchors = [d["anchors"] - problem.prompt_length for d in problem.documents]
    options = LossOptions(weighting="decay", gamma=problem.gamma)
    del problem  # the model has copies of what it needs
    weights = list(drafter.parameters())
    optimizer = torch.optim.AdamW(weights, 1e-6)

    def step() -> float:
        sums = batch_loss(drafter, ends, documents, anchors, options)
        loss = sums.weighted_sum / sums.labelled  # as speculators divides
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        return float(loss.detach())

    serve(step, int(threads))


if __name__ == "__main__":
    main()
