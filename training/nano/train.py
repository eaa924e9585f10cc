"""Trains the bundled model with the package's own engine::

    python -m training.nano.train --out runs/nano --minutes 200

The schedule runs by the clock, not by steps, so that a busy machine cannot spoil the decay. A run that was stopped goes
on from its last checkpoint when it is started again with the same `--out`. `log.jsonl` has loss and accuracy by task.

How it learns: AdamW, warm-up, a flat rate and a linear decay at the end; weights drawn at 0.7/sqrt(fan_in). Each way
into the text model (the picture features, each DeepStack term) has a small head that says of every picture token what
thing it shows, in which colour, in which ninth of the picture, how many things have their middle there, and where the
token itself lies; the heads are thrown away at the end. At first the vision encoder learns to see by these heads alone,
large things on small flat pictures first: that way many times as many pictures pass as with questions. Then questions
and plain looking take turns. Later still each way is cut at random, never all of a sample, so that the answer survives
the loss of one.

What did not work: questions alone from the start (after 900 steps colours and nothing else); heads that do not ask
where a token lies (the features keep nothing of it, and "where" is not learnt); things smaller than half a token;
questions that an earlier turn answers ("which image" after "what is in the second image?", counts one after another:
the text is read and the picture is not); "when" without being asked what is seen at a time; counts of one kind among
others where pictures rarely have two of a kind; "is there a red circle?" asked too rarely where there is a circle and
something red, and no red circle.

The bundled weights come from such a run of three and a half hours on one core, stopped a few times to change the mix of
questions as said here. They were then trained on for 74 minutes (`--start`: new heads, which learn alone first), the
last 42 of them twice side by side with other draws (`--seed`); `bundle` takes the mean of the two.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cutaway import load
from cutaway.checkpoint.config_reader import read_config
from cutaway.model.build import build
from cutaway.model.vlm import VLM
from cutaway.observe import observer
from training.nano import collate, files
from training.nano.batches import Batch, Layout, Recipe, Views, Writer, make, make_views
from training.nano.draw import digits
from training.nano.ways import Ways
from training.nano.world import CELL, CONTENTS, LABELS, Source

EASY, LOOK, CUT, DECAY = 0.12, 0.2, 0.75, 0.2
HEADS = 150  # steps in which weights that are given stand still, and the heads learn to read them
"""Parts of the time: all is as hard as it gets, questions start, ways begin to be cut; and how long the decay lasts."""

CUT_FEATURES, CUT_TERM = 0.2, 0.12


def draw_weights(model: VLM) -> None:
    """Matrices at 0.7/sqrt(fan_in), those that write to a stream at 0.3 of it; embeddings at 0.5 of the text norm."""
    for name, weight in model.named_parameters():
        if "embed_tokens" in name:
            nn.init.normal_(weight, std=0.05)
        elif "pos_embed" in name:
            nn.init.normal_(weight, std=0.1)
        elif weight.ndim >= 2:
            last = name.endswith(("o_proj.weight", "down_proj.weight", "attn.proj.weight", "mlp.linear_fc2.weight"))
            nn.init.normal_(weight, std=0.7 * (0.3 if last else 1.0) / math.sqrt(weight[0].numel()))
        elif name.endswith("bias"):
            nn.init.zeros_(weight)


def own_places(layout: Layout) -> Tensor:
    """[tokens 2]: row and column of each token of one sample, from -1 at the top and left to 1 at the other end."""
    found = []
    for height, width in layout.sizes:
        axes = [(torch.arange(side // CELL) + 0.5) * 2 * CELL / side - 1 for side in (height, width)]
        found += [torch.cartesian_prod(*axes)] * max(1, layout.grids)
    return torch.cat(found)


class Labels(nn.Module):
    """The heads that name what each picture token shows, one for each way in. Training only."""

    def __init__(self, width: int, ways: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, sum(LABELS) + 2) for _ in range(ways))

    def forward(self, seen: list[Tensor], batch: Batch | Views) -> Tensor:
        """The mean over ways of the cross-entropies, in which tokens of mere ground count for a fifth, and of the
        squared error of where each token lies in its picture: without it the features kept nothing of that.
        """
        cells = torch.from_numpy(batch.cells).flatten(0, 1)
        lies = own_places(batch.layout).repeat(len(batch.cells), 1)
        weight = torch.where(cells[:, 0] == len(CONTENTS), 0.2, 1.0)
        losses = []
        for head, features in zip(self.heads, seen, strict=True):
            *named, place = head(features).float().split([*LABELS, 2], -1)
            parts = zip(named, cells.T, (1.0, 0.5, 0.5, 1.0), strict=True)
            loss = torch.stack([share * F.cross_entropy(x, y, reduction="none") for x, y, share in parts]).sum(0)
            losses.append((loss * weight).sum() / weight.sum() + 2 * F.mse_loss(place, lies))
        return torch.stack(losses).mean()


def produce(queue: Any, part: Any, seed: int, recipe: Recipe, folder: str) -> None:
    """Draws batches for ever, in a process of its own; `part` is the part of the time that is over."""
    from tokenizers import Tokenizer

    os.nice(1)
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    writer = Writer(Tokenizer.from_file(str(Path(folder) / "tokenizer.json")))
    while True:
        if part.value < LOOK or rng.random() < 0.15:
            queue.put(make_views(rng, recipe, max(0.0, 1 - part.value / EASY)))
        else:
            queue.put(make(rng, writer, recipe))


def optimisers(model: nn.Module, labels: nn.Module, muon: bool) -> list[torch.optim.Optimizer]:
    """AdamW, or Muon for the matrices inside the blocks with AdamW for the rest."""
    hidden, decayed, plain = [], [], list(labels.parameters())
    for name, weight in model.named_parameters():
        inside = weight.ndim == 2 and "embed" not in name
        (hidden if inside and muon else decayed if inside else plain).append(weight)
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-3, betas=(0.9, 0.98), fused=True)
    ]
    if muon:
        found.append(torch.optim.Muon(hidden, lr=2e-3, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"))
    return found


def rate(part: float, steps: int) -> float:
    """The learning rate's factor when `part` of the time is over and `steps` were made."""
    return min(1.0, (steps + 1) / 150) * min(1.0, max(0.02, (1 - part) / DECAY))


def ways_kept(samples: int, ways: int, part: float) -> Tensor | None:
    """[ways samples] of ones and zeros; no sample loses every way."""
    if part < CUT:
        return None
    chance = torch.tensor([CUT_FEATURES] + [CUT_TERM] * (ways - 1))[:, None]
    keep = (torch.rand(ways, samples) >= chance).float()
    keep[torch.randint(ways, (samples,)), torch.arange(samples)] = 1.0
    return keep


def loss_of(model: VLM, labels: Labels, batch: Batch, writer: Writer, part: float) -> tuple[Tensor, Tensor]:
    """The answers' mean cross-entropy, and the labels'."""
    inputs = collate.inputs(batch, writer)
    watch = Ways(ways_kept(len(batch.ids), len(labels.heads), part))
    token = observer.set(watch)
    try:
        with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):  # its backward is quicker here
            logits = model(inputs)
            named = labels(watch.seen, batch)
    finally:
        observer.reset(token)
    at = torch.from_numpy(batch.answers[:, 1:])
    return F.cross_entropy(logits[:, :-1][at].float(), inputs.input_ids[:, 1:][at]), named


def look(model: VLM, labels: Labels, views: Views) -> Tensor:
    """The labels' mean cross-entropy on pictures without questions; the text model does not run."""
    patches = collate.patches(views.pixels).flatten(0, 1)
    grid = [list(g) for g in collate.grids(views.layout)] * len(views.pixels)
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        features, _, terms = model.visual(patches, grids=grid, images=len(grid))
        return labels([features, *terms], views)


@torch.no_grad()
def score(model: nn.Module, batches: list[Batch], writer: Writer) -> dict[str, float]:
    """Part of the answers that are right in every token, by task."""
    right: dict[str, list[bool]] = defaultdict(list)
    for batch in batches:
        inputs = collate.inputs(batch, writer)
        with torch.autocast("cpu", torch.bfloat16):
            best = model(inputs)[:, :-1].argmax(-1)
        miss = (best != inputs.input_ids[:, 1:]) & torch.from_numpy(batch.answers[:, 1:])
        for row, asked in enumerate(batch.asked):
            right[asked[0].task].append(not bool(miss[row].any()))
    return {task: round(float(np.mean(hits)), 4) for task, hits in sorted(right.items())}


class Run:
    """One training run: everything that a checkpoint holds, and the loop."""

    def __init__(self, out: Path, minutes: float, muon: bool, seed: int, start: Path | None = None) -> None:
        """`start`: a model folder whose weights are trained on, as if all but the last part (`CUT`) were done."""
        self.out, self.seconds, self.given = out, minutes * 60, start is not None
        out.mkdir(parents=True, exist_ok=True)
        self.writer = Writer(files.write(out))
        torch.manual_seed(seed)
        config = read_config(out)
        self.model = build(config).train()
        draw_weights(self.model)
        if start is not None:
            self.model.load_state_dict(load(str(start), dtype=torch.float32).root.state_dict())
        self.labels = Labels(config.text.hidden_size, 1 + len(config.vision.deepstack_indexes))
        self.optimisers = optimisers(self.model, self.labels, muon)
        self.base = [[g["lr"] for g in o.param_groups] for o in self.optimisers]
        self.mean = torch.optim.swa_utils.AveragedModel(self.model, avg_fn=self._follow)
        self.step, self.spent, self.seed = 0, CUT * self.seconds if self.given else 0.0, seed
        self._resume()

    def _follow(self, mean: Tensor, now: Tensor, count: Tensor | int) -> Tensor:
        return torch.lerp(now, mean, min(0.998, (1 + int(count)) / (20 + int(count))))

    @property
    def part(self) -> float:
        """Part of the time that is over."""
        return self.spent / self.seconds

    def save(self) -> None:
        """Writes the checkpoint whole or not at all."""
        state = {
            "model": self.model.state_dict(),
            "labels": self.labels.state_dict(),
            "mean": self.mean.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "random": torch.get_rng_state(),
            "step": self.step,
            "spent": self.spent,
        }
        torch.save(state, self.out / "checkpoint.part")
        (self.out / "checkpoint.part").replace(self.out / "checkpoint.pt")

    def _resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.labels.load_state_dict(state["labels"])
        self.mean.load_state_dict(state["mean"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        self.step, self.spent = state["step"], state["spent"]

    def learn(self, batch: Batch | Views) -> dict[str, float]:
        """One step; returns its losses by name."""
        alone = self.given and self.step < HEADS
        steps = self.step - HEADS if self.given and not alone else self.step
        for optimiser, base in zip(self.optimisers, self.base, strict=True):
            for group, lr in zip(optimiser.param_groups, base, strict=True):
                group["lr"] = lr * rate(self.part, steps)
            optimiser.zero_grad(set_to_none=True)
        losses = {}
        if isinstance(batch, Views):
            losses["views"] = total = look(self.model, self.labels, batch)
        else:
            losses["answers"], losses["labels"] = loss_of(self.model, self.labels, batch, self.writer, self.part)
            total = losses["answers"] + 0.3 * losses["labels"]
        total.backward()
        if alone:
            self.model.zero_grad(set_to_none=True)
        nn.utils.clip_grad_norm_([*self.model.parameters(), *self.labels.parameters()], 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self.mean.update_parameters(self.model)
        self.step += 1
        return {name: loss.item() for name, loss in losses.items()}

    def log(self, **what: Any) -> None:
        line = json.dumps({"step": self.step, "minutes": round(self.spent / 60, 2), **what})
        with (self.out / "log.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


def examination(writer: Writer, seed: int = 7, batches: int = 24) -> list[Batch]:
    """Batches of one question each, with digits that are kept out of the training."""
    rng = np.random.default_rng(seed)
    recipe = Recipe(source=Source("validation", 0.0), turns=1, tokens=1500, pairs=0.2, clips=0.25)
    return [make(rng, writer, recipe) for _ in range(batches)]


def train(run: Run, recipe: Recipe, steps: int | None) -> None:
    """The loop, until the time is over or `steps` are made."""
    digits()
    context = multiprocessing.get_context("spawn")
    part, queue = context.Value("d", run.part), context.Queue(8)
    worker = context.Process(
        target=produce, args=(queue, part, run.seed + 1000 * run.step, recipe, str(run.out)), daemon=True
    )
    worker.start()
    exams = examination(run.writer)
    losses, began = defaultdict(list), time.monotonic()
    saved = examined = run.spent
    while run.part < 1 and (steps is None or run.step < steps):
        part.value = run.part
        for name, loss in run.learn(queue.get()).items():
            losses[name].append(loss)
        now = time.monotonic()
        run.spent, began = run.spent + now - began, now
        if run.step % 100 == 0:
            run.log(**{name: round(float(np.mean(values)), 4) for name, values in losses.items()})
            losses.clear()
        if run.spent - examined > 240:
            run.log(exam=score(run.mean.module, exams, run.writer))
            examined = run.spent
        if run.spent - saved > 240:
            run.save()
            saved = run.spent
    worker.terminate()
    run.save()
    run.log(exam=score(run.mean.module, exams, run.writer))


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the bundled model.")
    parser.add_argument("--out", type=Path, default=Path("runs/nano"))
    parser.add_argument("--minutes", type=float, default=200)
    parser.add_argument("--start", type=Path, help="a model folder to train on: a quarter of the minutes is then used")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--muon", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("medium")
    train(Run(options.out, options.minutes, options.muon, options.seed, options.start), Recipe(), options.steps)


if __name__ == "__main__":
    main()
