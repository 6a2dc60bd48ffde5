"""The true τ of a drafter in training: its rounded weights, replayed over held-out completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from draftlab.drafter.checkpoint import Coverage, LoadedDrafter, load_drafter
from draftlab.drafter.ends import TargetEnds, load_ends, open_target
from draftlab.drafter.model import Drafter
from draftlab.hidden.store import HiddenStore
from draftlab.replay.draft import draft_anchors
from draftlab.replay.walks import chain_accepted, gather, streak_accepted, tree_accepted, walks_of
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts
from draftlab.train.material import Material
from draftlab.train.options import STREAK_WIDTH

SAVED_DTYPE = torch.bfloat16
"""Of checkpoints: what is replayed is what would be loaded."""


@dataclass(frozen=True, slots=True)
class HeldoutResult:
    """Pooled numbers over the held-out completions."""

    tau: float
    streak: float
    """streak@8: a bound for trees of width 8."""
    trees: dict[int, float]
    """Pooled τ by budget."""

    def entry(self) -> dict[str, float]:
        """As a log line has it."""
        named = {f"heldout_tau_tree_{budget}": tau for budget, tau in self.trees.items()}
        return {"heldout_tau": self.tau, f"heldout_streak_{STREAK_WIDTH}": self.streak, **named}


class Heldout:
    """A store over other completions than those that are trained on."""

    def __init__(
        self, store: HiddenStore, target_folder: Path, device: torch.device, budgets: Sequence[int]
    ) -> None:
        self._store = store
        self._target_folder = target_folder
        self._budgets = tuple(budgets)
        self._compute = Compute(
            device="cuda" if device.type == "cuda" else "cpu",
            dtype=store.index.conditions.dtype,
            threads=torch.get_num_threads(),
        )
        facts, files = open_target(target_folder)
        self._facts: TargetFacts = facts
        self._fingerprint = files.fingerprint()
        self._ends: TargetEnds = load_ends(files, facts, self._compute.torch_dtype, device)

    def replay(self, masters: Drafter) -> HeldoutResult:
        """τ of what a checkpoint of these weights would be, in the number type of the store."""
        drafter = Drafter(masters.config)
        state = {name: tensor.to(SAVED_DTYPE) for name, tensor in masters.state_dict().items()}
        drafter.load_state_dict(state)
        drafter.to(self._compute.torch_device, self._compute.torch_dtype)
        return self._replay(
            LoadedDrafter(
                drafter=drafter.eval().requires_grad_(requires_grad=False),
                ends=self._ends,
                target=self._facts,
                coverage=Coverage(used=0, total=0, dtype=""),
                fingerprint="",
                target_fingerprint=self._fingerprint,
                notes=(),
            )
        )

    def replay_folder(self, folder: Path) -> HeldoutResult:
        """τ of another drafter, on the same completions."""
        return self._replay(
            load_drafter(
                folder,
                self._target_folder,
                dtype=self._compute.torch_dtype,
                device=self._compute.torch_device,
            )
        )

    def _replay(self, loaded: LoadedDrafter) -> HeldoutResult:
        material = Material.of(self._store, loaded.drafter.config)
        with torch.inference_mode():
            drafts = [
                draft_anchors(loaded, material.sequence(number)) for number in material.usable
            ]

        return HeldoutResult(
            tau=gather(walks_of([chain_accepted(d) for d in drafts])).tau,
            streak=gather(walks_of([streak_accepted(d, STREAK_WIDTH) for d in drafts])).tau,
            trees={
                budget: gather(walks_of([tree_accepted(d, budget) for d in drafts])).tau
                for budget in self._budgets
            },
        )
