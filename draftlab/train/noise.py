"""Noise on the drafter's taps, as some trainers add it; never on what is stored or teaches.

Off unless asked for. It goes to a copy: the store's tensor may also hold the state that makes the
target's logits, and noise there has spoilt whole runs whose loss looked well. That the copy is one
is looked at each time, not trusted.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from draftlab.train.documents import Document
from draftlab.train.options import LossOptions


def noisy_taps(document: Document, options: LossOptions) -> Tensor:
    """The document's taps with noise, in a tensor of their own.

    Raises:
        ValueError: the document has no seed for it.
        RuntimeError: what is stored has changed, which is a fault of the program.
    """
    if document.noise_seed is None:
        raise ValueError("noise without a seed would differ from run to run")
    before = _digest(document)
    noisy = with_noise(document.taps_SC, document.noise_seed, options)
    if _digest(document) != before:
        raise RuntimeError("noise has reached the stored states")
    return noisy


def with_noise(taps_SC: Tensor, seed: int, options: LossOptions) -> Tensor:
    """Taps plus noise, in a new tensor."""
    generator = torch.Generator().manual_seed(seed)
    if options.noise_uniform:
        width = options.noise_uniform
        noise = torch.rand(taps_SC.shape, generator=generator) * (2 * width) - width
    else:
        noise = torch.randn(taps_SC.shape, generator=generator) * options.noise_std
    return taps_SC + noise.to(taps_SC)


def _digest(document: Document) -> list[int]:
    states = [document.taps_SC, document.last_SH]
    return [
        zlib.crc32(state.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        for state in states
        if state is not None
    ]
