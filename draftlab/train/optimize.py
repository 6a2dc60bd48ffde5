"""Optimizers, their schedule, and weights of a lower precision that the passes use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from draftlab.drafter.model import Drafter
from draftlab.train.config import OptimizerConfig, ScheduleConfig


class Optimizer:
    """AdamW for all weights; or Muon for the matrices, at AdamW's step size, beside AdamW.

    The weights are float32, whatever the passes compute in, and so are gradients added up.
    """

    def __init__(self, drafter: Drafter, config: OptimizerConfig) -> None:
        self._weights = list(drafter.parameters())
        self._config = config
        self.parts = _parts(self._weights, config)

    def gradients(self) -> list[Tensor]:
        """Of every weight; zeros where a pass had nothing to learn from."""
        for weight in self._weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        return [weight.grad for weight in self._weights if weight.grad is not None]

    def step(self, rate: float) -> float:
        """Clip, move the weights, forget the gradients; the gradient's norm before clipping."""
        for group in itertools.chain.from_iterable(part.param_groups for part in self.parts):
            group["lr"] = rate
        norm = nn.utils.clip_grad_norm_(self._weights, self._config.clip)
        for part in self.parts:
            part.step()
            part.zero_grad(set_to_none=True)
        return float(norm)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything the optimizers remember, by name."""
        for number, part in enumerate(self.parts):
            for index, state in part.state_dict()["state"].items():
                for name, value in state.items():
                    yield f"{number}.{index}.{name}", torch.as_tensor(value)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Remember what `tensors` gave."""
        for number, part in enumerate(self.parts):
            body = part.state_dict()
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                place, index, field = name.split(".", 2)
                if int(place) == number:
                    state.setdefault(int(index), {})[field] = value
            part.load_state_dict({**body, "state": state})


def rate_at(step: int, steps: int, peak: float, config: ScheduleConfig) -> float:
    """Learning rate of step 1, 2, ..., `steps`: linear warm-up, then a cosine to zero."""
    warmup = steps * config.warmup_ratio
    if step <= warmup:
        return peak * step / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def initialise(drafter: Drafter, seed: int) -> None:
    """Normal weights of variance 1 / fan-in; what writes to the residual stream is made smaller."""
    generator = torch.Generator().manual_seed(seed)
    depth = len(drafter.config.layers)
    for name, module in drafter.named_modules():
        if isinstance(module, nn.Linear):
            scale = 1.0 / math.sqrt(2 * depth) if name.endswith(("o_proj", "down_proj")) else 1.0
            std = scale / math.sqrt(module.in_features)
            nn.init.normal_(module.weight, std=std, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _parts(weights: list[nn.Parameter], config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    rate, decay = config.learning_rate, config.weight_decay
    if config.name == "adamw":
        return [torch.optim.AdamW(weights, rate, config.betas, weight_decay=decay)]
    matrices = [weight for weight in weights if weight.ndim == 2]
    others = [weight for weight in weights if weight.ndim != 2]
    return [
        torch.optim.Muon(matrices, rate, decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, rate, config.betas, weight_decay=0.0),
    ]
