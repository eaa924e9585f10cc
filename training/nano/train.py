"""Trains the bundled model with the package's own engine::

    python -m training.nano.train --out runs/nano --steps 42000

The schedule is counted in steps, never by the clock: a busy machine makes a run longer and changes nothing else. The
batch of a step is drawn from the seed and the step's number alone. So a run that was stopped at any moment goes on from
its last checkpoint when the same command is given again, and ends with the weights that it would have had without the
stop. `log.jsonl` has the loss, the samples a second and, now and then, the accuracy by task.

How it learns: AdamW, warm-up, a flat rate and a linear decay at the end; weights drawn at 0.7/sqrt(fan_in). The image
has four routes into the text model (the image features and three DeepStack terms). Each has a small head that labels
every image token: what it shows, in which color, in which ninth of the image, how many things have their middle in it
(of each kind and color too), and where the token itself lies. The heads are left out of the bundled weights. At first
the vision encoder learns by these heads alone, from large things on small flat images on: many times as many images
pass that way as with questions. Then questions and plain labelling take turns. From `CUT` on each route is cut at
random, never all of a sample, so that the answer survives the loss of one.

What did not work in earlier runs: questions alone from the start (after 900 steps colors and nothing else); heads that
are not asked where a token lies (the features keep nothing of it, and "where" is not learnt); questions that an earlier
turn answers ("which image" after "what is in the second image?": the text is read and the image is not); "when" without
being asked what is seen at a time; counts of one kind among others where images rarely have two of a kind.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cutaway.checkpoint.config_reader import read_config
from cutaway.model.build import build
from cutaway.model.vlm import VLM
from cutaway.observe import observer
from training.nano import collate, files
from training.nano.batches import Batch, Layout, Recipe, Views, Writer, make, make_views
from training.nano.routes import Routes
from training.nano.world import CELL, CONTENTS, NAMED, PART_VALUES, PARTS, Look

EASY, LABELS_ONLY, CUT, DECAY = 0.05, 0.2, 0.4, 0.25
"""Shares of the steps: until everything is as hard as it gets; until questions start; until routes begin to be cut; and
how long the decay of the learning rate lasts.
"""
VIEWS = 0.15  # share of batches without questions, once there are others
RATE, WEIGHT_DECAY, WARM_UP = 1e-3, 0.05, 300
CUT_FEATURES, CUT_TERM = 0.2, 0.12
SAVE_SECONDS = 240
EXAMINE_STEPS, LOG_STEPS = 1500, 100
WORKERS = 1
RECIPES = {"plain": Recipe(), "hybrid": Recipe(pairs=0.0, videos=0.0)}
"""What each kind of model is trained on: the hybrid on single images alone."""


def draw_weights(model: VLM) -> None:
    """Matrices at 0.7/sqrt(fan_in), those that write to a residual stream at 0.3 of it; embeddings at 0.05 and 0.1."""
    for name, weight in model.named_parameters():
        if "embed_tokens" in name:
            nn.init.normal_(weight, std=0.05)
        elif "pos_embed" in name:
            nn.init.normal_(weight, std=0.1)
        elif name.endswith("dt_bias"):  # heads of the delta net that forget within three tokens to three hundred
            steps = torch.logspace(math.log10(0.003), math.log10(0.3), len(weight))
            with torch.no_grad():
                weight.copy_(steps.expm1().log())
        elif weight.ndim >= 2:
            last = name.endswith(
                ("o_proj.weight", "down_proj.weight", "attn.proj.weight", "mlp.linear_fc2.weight", "out_proj.weight")
            )
            nn.init.normal_(weight, std=0.7 * (0.3 if last else 1.0) / math.sqrt(weight[0].numel()))
        elif name.endswith("bias"):
            nn.init.zeros_(weight)


def token_positions(layout: Layout) -> Tensor:
    """[tokens 2]: row and column of each token of one sample, from -1 at the top and left to 1 at the other end."""
    positions = []
    for height, width in layout.sizes:
        axes = [(torch.arange(side // CELL) + 0.5) * 2 * CELL / side - 1 for side in (height, width)]
        positions += [torch.cartesian_prod(*axes)] * max(1, layout.grids)
    return torch.cat(positions)


class LabelHeads(nn.Module):
    """The heads that label each image token, one for each route. Training only."""

    def __init__(self, width: int, routes: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, sum(NAMED) + PARTS * PART_VALUES + 2) for _ in range(routes))

    def forward(self, features: list[Tensor], batch: Batch | Views) -> Tensor:
        """The mean over routes of the cross-entropies, in which tokens of mere ground count for a fifth, and of the
        squared error of where each token lies in its image.
        """
        cells = torch.from_numpy(batch.cells).flatten(0, 1)  # [samples*tokens labels]
        positions = token_positions(batch.layout).repeat(len(batch.cells), 1)
        weight = torch.where((cells[:, 0] == len(CONTENTS)) & (cells[:, 3] == 0), 0.2, 1.0)
        losses = []
        for head, values in zip(self.heads, features, strict=True):
            *named, parts, position = head(values).float().split([*NAMED, PARTS * PART_VALUES, 2], -1)
            shares = zip(named, cells.T, (1.0, 0.5, 0.5, 1.0), strict=False)
            loss = torch.stack([share * F.cross_entropy(x, y, reduction="none") for x, y, share in shares]).sum(0)
            counts = parts.reshape(-1, PART_VALUES)  # [samples*tokens*parts values]
            each = F.cross_entropy(counts, cells[:, len(NAMED) :].flatten(), reduction="none")
            loss = loss + each.reshape(-1, PARTS).sum(-1)
            losses.append((loss * weight).sum() / weight.sum() + 2 * F.mse_loss(position, positions))
        return torch.stack(losses).mean()


def batch_of(step: int, steps: int, seed: int, writer: Writer, recipe: Recipe) -> Batch | Views:
    """The batch of this step of a run of `steps`: the same whenever and wherever it is drawn."""
    rng, part = np.random.default_rng([seed, step]), step / steps
    if part < LABELS_ONLY or rng.random() < VIEWS:
        return make_views(rng, recipe, max(0.0, 1 - part / EASY))
    return make(rng, writer, recipe)


def produce(queue: Any, first: int, every: int, steps: int, seed: int, recipe: Recipe, folder: str) -> None:
    """Draws the batches of every `every`-th step, from `first` on, in a process of its own."""
    from tokenizers import Tokenizer

    torch.set_num_threads(1)
    writer = Writer(Tokenizer.from_file(str(Path(folder) / "tokenizer.json")))
    for step in range(first, steps, every):
        queue.put(batch_of(step, steps, seed, writer, recipe))


def optimizer_of(model: nn.Module, heads: nn.Module) -> torch.optim.Optimizer:
    """AdamW; matrices inside the layers decay, embeddings, norms, biases and heads do not."""
    decayed, plain = [], list(heads.parameters())
    for name, weight in model.named_parameters():
        (decayed if weight.ndim == 2 and "embed" not in name else plain).append(weight)
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), fused=True)


def rate(step: int, steps: int) -> float:
    """The learning rate's factor at this step."""
    return min(1.0, (step + 1) / WARM_UP) * min(1.0, max(0.02, (1 - step / steps) / DECAY))


def routes_kept(samples: int, routes: int, step: int, steps: int, seed: int) -> Tensor | None:
    """[routes samples] of ones and zeros; no sample loses every route. None while nothing is cut."""
    if step / steps < CUT:
        return None
    rng = np.random.default_rng([seed, step, 1])
    chance = np.array([CUT_FEATURES] + [CUT_TERM] * (routes - 1))[:, None]
    keep = (rng.random((routes, samples)) >= chance).astype(np.float32)
    keep[rng.integers(routes, size=samples), np.arange(samples)] = 1.0
    return torch.from_numpy(keep)


def losses_of(
    model: VLM, heads: LabelHeads, batch: Batch, writer: Writer, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The answers' mean cross-entropy, and the labels'."""
    inputs = collate.inputs(batch, writer)
    watch = Routes(keep)
    token = observer.set(watch)
    try:
        with sdpa_kernel(SDPBackend.MATH):  # its backward is quicker here
            logits = model(inputs)
            labels = heads(watch.values, batch)
    finally:
        observer.reset(token)
    at = torch.from_numpy(batch.answers[:, 1:])
    return F.cross_entropy(logits[:, :-1][at].float(), inputs.input_ids[:, 1:][at]), labels


def labels_loss(model: VLM, heads: LabelHeads, views: Views) -> Tensor:
    """The labels' mean cross-entropy on images without questions; the text model does not run."""
    patches = collate.patches(views.pixels).flatten(0, 1)
    grid = [list(g) for g in collate.grids(views.layout)] * len(views.pixels)
    with sdpa_kernel(SDPBackend.MATH):
        features, _, terms = model.visual(patches, grids=grid, images=len(grid))
        return heads([features, *terms], views)


@torch.no_grad()
def score(model: nn.Module, batches: list[Batch], writer: Writer) -> dict[str, float]:
    """Share of the answers that are right in every token, by task."""
    right: dict[str, list[bool]] = defaultdict(list)
    for batch in batches:
        inputs = collate.inputs(batch, writer)
        best = model(inputs)[:, :-1].argmax(-1)
        miss = (best != inputs.input_ids[:, 1:]) & torch.from_numpy(batch.answers[:, 1:])
        for sample, questions in enumerate(batch.questions):
            right[questions[0].task].append(not bool(miss[sample].any()))
    return {task: round(float(np.mean(hits)), 4) for task, hits in sorted(right.items())}


class Run:
    """One training run: everything that a checkpoint holds, and one step of it."""

    def __init__(self, out: Path, steps: int, seed: int = 0, kind: str = "plain") -> None:
        self.out, self.steps, self.seed = out, steps, seed
        out.mkdir(parents=True, exist_ok=True)
        self.writer = Writer(files.write(out, kind))
        torch.manual_seed(seed)
        config = read_config(out)
        self.model = build(config).train()
        draw_weights(self.model)
        self.heads = LabelHeads(config.text.hidden_size, 1 + len(config.vision.deepstack_indexes))
        self.optimizer = optimizer_of(self.model, self.heads)
        self.mean = torch.optim.swa_utils.AveragedModel(self.model, avg_fn=self._follow)
        self.step = self.samples = 0
        self.seconds = 0.0
        self._resume()

    def _follow(self, mean: Tensor, now: Tensor, count: Tensor | int) -> Tensor:
        return torch.lerp(now, mean, min(0.999, (1 + int(count)) / (20 + int(count))))

    def save(self) -> None:
        """Writes the checkpoint whole or not at all."""
        state = {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "mean": self.mean.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": (self.steps, self.seed),
            "progress": (self.step, self.samples, self.seconds),
        }
        torch.save(state, self.out / "checkpoint.part")
        (self.out / "checkpoint.part").replace(self.out / "checkpoint.pt")

    def _resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path)
        if state["schedule"] != (self.steps, self.seed):
            steps, seed = state["schedule"]
            raise SystemExit(f"A run goes on with its own schedule; got another than --steps {steps} --seed {seed}")
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.mean.load_state_dict(state["mean"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.samples, self.seconds = state["progress"]

    def learn(self, batch: Batch | Views) -> dict[str, float]:
        """One step; returns its losses by name."""
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * rate(self.step, self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        losses = {}
        if isinstance(batch, Views):
            losses["views"] = total = labels_loss(self.model, self.heads, batch)
        else:
            keep = routes_kept(len(batch.ids), len(self.heads.heads), self.step, self.steps, self.seed)
            losses["answers"], losses["labels"] = losses_of(self.model, self.heads, batch, self.writer, keep)
            total = losses["answers"] + 0.2 * losses["labels"]
        total.backward()
        nn.utils.clip_grad_norm_([*self.model.parameters(), *self.heads.parameters()], 1.0)
        self.optimizer.step()
        self.mean.update_parameters(self.model)
        self.step += 1
        self.samples += len(batch.cells)
        return {name: loss.item() for name, loss in losses.items()}

    def log(self, **what: Any) -> None:
        line = json.dumps({"step": self.step, "samples": self.samples, "minutes": round(self.seconds / 60, 1), **what})
        with (self.out / "log.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


def examination(writer: Writer, recipe: Recipe, seed: int = 7, batches: int = 40) -> list[Batch]:
    """Batches of one question each, with handwritten digits that are kept out of the training."""
    rng = np.random.default_rng(seed)
    recipe = replace(recipe, look=Look("validation", printed=0.3, warp=0.0), turns=1, tokens=1200)
    return [make(rng, writer, recipe) for _ in range(batches)]


def train(run: Run, recipe: Recipe, stop: int) -> None:
    """The loop, until step `stop` is made."""
    context = multiprocessing.get_context("spawn")
    queues = [context.Queue(6) for _ in range(WORKERS)]
    workers = [
        context.Process(
            target=produce,
            args=(queue, run.step + i, WORKERS, run.steps, run.seed, recipe, str(run.out)),
            daemon=True,
        )
        for i, queue in enumerate(queues)
    ]
    for worker in workers:
        worker.start()
    exams = examination(run.writer, recipe)
    losses, first = defaultdict(list), run.step
    clock = saved = time.monotonic()
    logged = run.samples, clock
    while run.step < stop:
        for name, loss in run.learn(queues[(run.step - first) % WORKERS].get()).items():
            losses[name].append(loss)
        now = time.monotonic()
        run.seconds, clock = run.seconds + now - clock, now
        if run.step % LOG_STEPS == 0:
            speed = (run.samples - logged[0]) / (now - logged[1])
            run.log(speed=round(speed, 1), **{name: round(float(np.mean(v)), 4) for name, v in losses.items()})
            losses.clear()
            logged = run.samples, now
        if run.step % EXAMINE_STEPS == 0 and run.step > LABELS_ONLY * run.steps:
            run.log(exam=score(run.mean.module, exams, run.writer))
        if now - saved > SAVE_SECONDS:
            run.save()
            saved = now
    for worker in workers:
        worker.terminate()
    run.save()
    run.log(exam=score(run.mean.module, exams, run.writer))


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the bundled model, or goes on with a run that was stopped.")
    parser.add_argument("--out", type=Path, default=Path("runs/nano"), help="the run's folder")
    parser.add_argument("--steps", type=int, default=42000, help="length of the whole schedule")
    parser.add_argument("--stop", type=int, help="end after this step; the schedule stays as it is")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=files.KINDS, default="plain", help="which model")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = Run(options.out, options.steps, options.seed, options.kind)
    train(run, RECIPES[options.kind], min(options.stop or options.steps, options.steps))


if __name__ == "__main__":
    main()
