"""What a training run needs, opened and checked before anything is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from draftlab.base.errors import StoreError
from draftlab.base.records import sha256_json
from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import open_target
from draftlab.drafter.model import Drafter
from draftlab.hidden.store import HiddenStore
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts
from draftlab.target.tensors import embedding_name
from draftlab.train.config import TrainConfig
from draftlab.train.documents import require_clean_taps
from draftlab.train.material import Material, require_disjoint
from draftlab.train.shape import wished_shape


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that can start: everything has been checked that needs no step."""

    config: TrainConfig
    target_folder: Path
    shape: DrafterConfig
    facts: TargetFacts
    material: Material
    heldout: HiddenStore | None
    compute: Compute
    digest: str
    steps: int

    @property
    def parameters(self) -> int:
        """Of the drafter, embedding and head not among them."""
        with torch.device("meta"):
            return sum(weight.numel() for weight in Drafter(self.shape).parameters())


def plan_training(config: TrainConfig) -> Plan:
    """Open and check what a run needs.

    Raises:
        StoreError: a store cannot be used, or held-out completions are trained on.
        DrafterError: the drafter does not fit target and store.
    """
    data = config.data
    store = HiddenStore.open(data.store)
    heldout = None if data.heldout is None else HiddenStore.open(data.heldout)
    target_folder = data.target or store.target_folder
    facts, files = open_target(target_folder)
    fingerprint = files.fingerprint()
    for each in (store, heldout):
        if each is not None and each.index.conditions.target_fingerprint != fingerprint:
            raise StoreError(
                f"{each.folder} is of another target.", mend="Set data.target to the store's."
            )
    if heldout is not None:
        require_disjoint(store, heldout)
    wish = config.drafter
    shape = wished_shape(target_folder, wish, store.index.conditions.target_layer_ids)
    shape.require_fit(facts, embedding_rows=files.infos[embedding_name(files)].shape[0])
    require_clean_taps(shape, allow_last_layer=wish.allow_last_layer)
    material = Material.of(store, shape, with_last=config.loss.loss == "kl")
    engine = config.engine
    steps = config.schedule.steps or math.ceil(
        (config.schedule.epochs or 0) * len(material.usable) / config.batch.completions
    )
    return Plan(
        config=config,
        target_folder=target_folder,
        shape=shape,
        facts=facts,
        material=material,
        heldout=heldout,
        compute=Compute.choose(engine.device, engine.compute, threads=engine.threads),
        digest=_run_digest(config, store, heldout),
        steps=steps,
    )


def _run_digest(config: TrainConfig, store: HiddenStore, heldout: HiddenStore | None) -> str:
    """Of everything that decides what is learned and what is said to be best.

    Where the stores lie, how often something is saved and on which device it runs are left out.
    """
    body = config.model_dump(mode="json", exclude={"data", "checkpoints"})
    body["engine"] = {k: v for k, v in body["engine"].items() if k in {"compute", "seed"}}
    stores = [store.digest, None if heldout is None else heldout.digest]
    return sha256_json([body, *stores])
