"""Train a drafter on a hidden-state store, and know its true held-out τ on the way.

In:   a TrainConfig.
Out:  a run folder: config.resolved.yaml, run.json, log.jsonl, checkpoints/, and at the end the
      drafter itself under drafter/, in z-lab's layout.

Labels are the target's tokens as decoded; where noise is added to the states that the drafter
reads, it goes to a copy; its taps leave out the layer that makes the target's logits. The forward
is the one that replay uses. A killed run goes on from its newest checkpoint to the same bytes.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml
from torch import Tensor

from draftlab.base.progress import Track, silent
from draftlab.base.quantities import listing
from draftlab.base.records import Provenance, write_atomic
from draftlab.drafter.checkpoint import load_drafter
from draftlab.drafter.ends import TargetEnds, load_ends, open_target
from draftlab.drafter.model import Drafter
from draftlab.target.compute import Compute, best_operations_per_second
from draftlab.train.attention import choose_attention
from draftlab.train.blocks import anchors_of, draw_seed, fixed_anchors
from draftlab.train.checkpoints import (
    BestTau,
    TrainerRecord,
    copy_drafter,
    drop_old_checkpoints,
    newest_checkpoint,
    save_checkpoint,
    sweep_parts,
)
from draftlab.train.config import TrainConfig
from draftlab.train.documents import Document
from draftlab.train.forward import batch_loss
from draftlab.train.heldout import Heldout
from draftlab.train.loss import LossSums
from draftlab.train.optimize import Optimizer, initialise, rate_at
from draftlab.train.order import Drawn, Order, split_evenly
from draftlab.train.plan import Plan, plan_training
from draftlab.train.processes import Processes
from draftlab.train.record import RUN_NAME, Log, RunRecord
from draftlab.train.teacher import Teacher
from draftlab.train.work import step_operations

CONFIG_NAME, DRAFTER_NAME = "config.resolved.yaml", "drafter"
_DECLINING = 2
"""Replays in a row below the best one that are called a decline."""

Tell = Callable[[str], None]


def _mute(_line: str) -> None:
    """Say nothing: a library does not write to its caller's terminal."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of a run."""

    folder: Path
    record: RunRecord
    log: tuple[dict[str, float], ...]

    @property
    def drafter(self) -> Path:
        """The folder of the drafter with the best held-out τ; the last one where none is known."""
        return self.folder / DRAFTER_NAME

    @property
    def heldout_tau(self) -> float:
        """Held-out chain τ of `drafter`; NaN if nothing was held out."""
        return math.nan if self.record.best is None else self.record.best.tau


def train(config: TrainConfig, out: Path, *, track: Track = silent, tell: Tell = _mute) -> Trained:
    """Train a drafter, or go on with a run that was stopped.

    Args:
        config: what to do.
        out: folder of the run.
        track: shows progress.
        tell: is told of replays and checkpoints, a line each.

    Raises:
        StoreError: a store cannot be used, or held-out completions are trained on.
        DrafterError: the drafter does not fit target and store.
        DraftlabError: `out` holds another run.
    """
    return Run(plan_training(config), out, tell).carry_out(track)


@dataclass(slots=True)
class _Progress:
    """Where a run stands."""

    step: int = 0
    best: BestTau | None = None
    stale: int = 0
    """Replays since the best one."""
    saved_step: int = -1
    saved_at: float = field(default_factory=time.monotonic)


class Run:
    """One training run in one folder, by this process and perhaps others."""

    def __init__(self, plan: Plan, out: Path, tell: Tell) -> None:
        self._plan, self._out = plan, out
        self._config = plan.config
        checkpoint = newest_checkpoint(out, plan.digest)
        threads = plan.compute.threads if checkpoint is None else checkpoint.record.threads
        self._compute = plan.compute.model_copy(update={"threads": threads})
        self._compute.apply()
        device = self._compute.torch_device
        self._processes = Processes.join(device)
        self._tell = tell if self._processes.leads else _mute
        self._drafter = _drafter(plan, device)
        self._optimizer = Optimizer(self._drafter, self._config.optimizer)
        self._ends: TargetEnds = load_ends(
            open_target(plan.target_folder)[1], plan.facts, self._compute.torch_dtype, device
        )
        self._teacher = None
        if self._config.loss.loss == "kl":
            self._teacher = Teacher.open(plan.target_folder, self._ends, self._compute)
        self._order = Order(
            plan.material.usable, self._config.batch.completions, self._config.engine.seed
        )
        self._heldout = self._held_out(device) if self._processes.leads else None
        self._at = _Progress()
        self._reference_tau: float | None = None
        self._rate = best_operations_per_second(self._compute)
        if checkpoint is not None:
            checkpoint.restore(self._drafter, self._optimizer)
            record = checkpoint.record
            self._at = _Progress(record.step, record.best, record.stale, record.step)
            self._tell(f"going on after step {record.step:,}")

    def carry_out(self, track: Track) -> Trained:
        """Every step that is left, then the drafter itself."""
        if self._processes.leads:
            self._out.mkdir(parents=True, exist_ok=True)
            sweep_parts(self._out)
            text = yaml.safe_dump(self._config.model_dump(mode="json"), sort_keys=False)
            write_atomic(self._out / CONFIG_NAME, text.encode())
        log = Log.continued(self._out, self._at.step) if self._processes.leads else None
        self._say_warnings()
        self._measure_reference()
        left = self._plan.steps - self._at.step
        for entry in track(self._steps(), total=left, what="train", unit="steps"):
            if log is not None:
                log.append(entry)
            if self._saves():
                self._save(entry.get("heldout_tau"))
        made = self._finish(log)
        self._processes.part()
        return made

    def _steps(self) -> Iterator[dict[str, float]]:
        while not self._done:
            yield self._one_step()

    def _one_step(self) -> dict[str, float]:
        """The next step, with the replay that follows it; its line of the log."""
        started = time.perf_counter()
        step = self._at.step + 1
        sums, context_rows = self._learn(step)
        denominator = self._config.loss.denominator(sums)
        peak = self._config.optimizer.learning_rate
        rate = rate_at(step, self._plan.steps, peak, self._config.schedule)
        for gradient in self._optimizer.gradients():
            gradient.div_(denominator.to(gradient.dtype))
        norm = self._optimizer.step(rate)
        self._at.step = step
        entry = self._entry(sums, context_rows, time.perf_counter() - started)
        entry |= {"learning_rate": rate, "gradient_norm": norm}
        entry["loss"] = float(sums.weighted_sum / denominator)
        if self._replays():
            entry |= self._replay()
        return entry

    @property
    def _done(self) -> bool:
        """Whether no step is left."""
        patience = self._config.evaluation.patience
        return self._at.step >= self._plan.steps or bool(patience and self._at.stale >= patience)

    def _learn(self, step: int) -> tuple[LossSums, Tensor]:
        """Gradients of one step, added up over micro-batches and processes; and the sums."""
        own = self._processes.share(self._order.step(step))
        device, loss = self._compute.torch_device, self._config.loss
        total: LossSums | None = None
        rows = 0
        for drawn in split_evenly(own, self._config.batch.micro_batches):
            if not drawn:
                continue
            documents = [self._document(each) for each in drawn]
            rows += sum(len(document.taps_SC) for document in documents)
            anchors = [self._anchors(each) for each in drawn]
            sums = batch_loss(
                self._drafter, self._ends, documents, anchors, loss, teacher=self._teacher
            )
            sums.weighted_sum.backward()  # type: ignore[no-untyped-call]
            total = sums.detached() if total is None else total + sums.detached()
        total = LossSums.zeros(device) if total is None else total
        counted = total.stacked()
        context = torch.tensor([float(rows)], dtype=torch.float64, device=device)
        self._processes.add_up(self._optimizer.gradients())
        self._processes.add_up([counted, context])
        return LossSums.unstacked(counted), context

    def _document(self, drawn: Drawn) -> Document:
        seed = None
        if self._config.loss.has_noise:
            seed = draw_seed(self._config.engine.seed, drawn.epoch, drawn.number, "noise")
        return self._plan.material.read(drawn.number, seed)

    def _anchors(self, drawn: Drawn) -> Tensor:
        batch, tokens = self._config.batch, self._plan.material.num_tokens(drawn.number)
        if batch.anchor_rule == "fixed":
            return fixed_anchors(tokens, batch.anchors, self._plan.shape.block_size)
        seed = self._config.engine.seed
        return anchors_of(seed, drawn.epoch, drawn.number, tokens, batch.anchors)

    def _entry(self, sums: LossSums, context_rows: Tensor, seconds: float) -> dict[str, float]:
        labelled, blocks = float(sums.labelled), float(sums.blocks)
        operations = step_operations(
            self._plan.shape,
            self._plan.facts,
            context_rows=int(context_rows),
            blocks=int(blocks),
            labelled=int(labelled),
        )
        share = operations / seconds / self._rate / self._processes.size
        # Above 1, the rate was measured beside other work: then it tells nothing.
        known = {"share_of_matrix_rate": share} if share <= 1 else {}
        return {
            "step": self._at.step,
            "epoch": self._order.epoch_after(self._at.step),
            "top1": float(sums.right) / labelled,
            "streak_8_all_anchor": 1 + float(sums.streak) / blocks,
            "labelled": labelled,
            "seconds": seconds,
            "labelled_per_second": labelled / seconds,
            "peak_memory_bytes": float(_peak_memory(self._compute)),
            **known,
        }

    def _replays(self) -> bool:
        every = self._config.evaluation.every
        at_end = self._at.step == self._plan.steps
        return self._plan.heldout is not None and (
            at_end or bool(every and self._at.step % every == 0)
        )

    def _replay(self) -> dict[str, float]:
        """By the leading process; the others hear its τ, on which it depends whether they go on."""
        found = None if self._heldout is None else self._heldout.replay(self._drafter)
        tau = self._processes.tell(math.nan if found is None else found.tau)
        at = self._at
        if at.best is None or tau > at.best.tau:
            at.best, at.stale = BestTau(step=at.step, tau=tau), 0
        else:
            at.stale += 1
        if found is None:
            return {}
        trees = "".join(f", tree {b} {tau:.3f}" for b, tau in found.trees.items())
        worse = f"; the best was {at.best.tau:.3f} at step {at.best.step:,}" if at.stale else ""
        declining = ": declining" if at.stale >= _DECLINING else ""
        self._tell(f"step {at.step:,}: held-out chain τ {tau:.3f}{trees}{worse}{declining}")
        return found.entry()

    def _saves(self) -> bool:
        wish = self._config.checkpoints
        late = time.monotonic() - self._at.saved_at >= 60 * wish.minutes
        due = (
            self._done
            or bool(wish.every and self._at.step % wish.every == 0)
            or bool(wish.minutes and late)
            or (self._at.best is not None and self._at.best.step == self._at.step)
        )
        return bool(self._processes.tell(float(due)))

    def _save(self, tau: float | None) -> None:
        self._at.saved_step, self._at.saved_at = self._at.step, time.monotonic()
        if self._processes.leads:
            record = TrainerRecord(
                step=self._at.step,
                run_digest=self._plan.digest,
                threads=self._compute.threads,
                heldout_tau=tau,
                best=self._at.best,
                stale=self._at.stale,
                files={},
            )
            vocab_size = self._plan.facts.vocab_size
            save_checkpoint(self._out, record, self._drafter, self._optimizer, vocab_size)
            drop_old_checkpoints(self._out, self._config.checkpoints.keep_last, self._at.best)
            self._record(finished=False).save(self._out / RUN_NAME)
        self._processes.wait()

    def _held_out(self, device: torch.device) -> Heldout | None:
        if self._plan.heldout is None:
            return None
        budgets = self._config.evaluation.budgets
        return Heldout(self._plan.heldout, self._plan.target_folder, device, budgets)

    def _say_warnings(self) -> None:
        wish, shape = self._config.loss.attention, self._plan.shape
        chosen = choose_attention(
            wish, shape, self._compute.torch_device, self._compute.torch_dtype
        )
        self._tell(chosen.why)
        warning = self._config.loss.warning
        if warning is not None:
            self._tell(warning)
        short = self._plan.material.too_short
        if short:
            self._tell(f"{len(short)} completions are too short for an anchor: {listing(short)}")

    def _measure_reference(self) -> None:
        folder = self._config.evaluation.reference_drafter
        if folder is not None and self._heldout is not None:
            self._reference_tau = self._heldout.replay_folder(folder).tau
            self._tell(f"reference drafter {folder.name}: chain τ {self._reference_tau:.3f}")

    def _record(self, *, finished: bool) -> RunRecord:
        return RunRecord(
            run_digest=self._plan.digest,
            config=self._config.model_dump(mode="json"),
            parameters=self._plan.parameters,
            steps_planned=self._plan.steps,
            steps_done=self._at.step,
            finished=finished,
            stopped_early=finished and self._at.step < self._plan.steps,
            best=self._at.best,
            reference_tau=self._reference_tau,
            share_supervised=self._plan.material.share_supervised,
            left_out=self._plan.material.too_short,
            provenance=Provenance.now(),
        )

    def _finish(self, log: Log | None) -> Trained:
        """Put the best checkpoint's drafter where it is looked for."""
        if self._at.saved_step != self._at.step:  # a finished run that was asked for again
            self._save(None)
        record = self._record(finished=True)
        if log is None:
            return Trained(self._out, record, ())
        step = self._at.step if self._at.best is None else self._at.best.step
        copy_drafter(self._out, step, self._out / DRAFTER_NAME)
        record.save(self._out / RUN_NAME)
        return Trained(self._out, record, tuple(log.entries()))


def _drafter(plan: Plan, device: torch.device) -> Drafter:
    """Where a run starts, in float32."""
    start = plan.config.drafter.start
    if start is not None:
        loaded = load_drafter(start, plan.target_folder, dtype=torch.float32, device=device)
        return loaded.drafter.train().requires_grad_()
    drafter = Drafter(plan.shape)
    initialise(drafter, plan.config.engine.seed)
    return drafter.to(device)


def _peak_memory(compute: Compute) -> int:
    """Most bytes that this process has held: of the device, or of the machine on a CPU."""
    if compute.device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
