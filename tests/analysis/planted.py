"""A Qwen3-VL with weights made by hand, whose only working head copies one image token to the last position.

White patches become feature A beside B, black ones B alone; the last token, ``!``, is the only one that asks for A.
Head `HEAD` of layer `LAYER` brings A there and writes the answer's direction. All other heads look about at random and
write nothing, MLPs and DeepStack are silent.
"""

from __future__ import annotations

import json

import torch
from PIL import Image, ImageDraw

from cutaway.api import Model, random
from cutaway.batch import Inputs
from tests.analysis.models import CHECKPOINTS

LAYER, HEAD, CELL = 2, 1, (5, 2)
"""Where the head is, and the row and column of the white token in a grid of 8 × 8."""

ANSWER, PROMPT = "T", "<|vision_start|><|image_pad|><|vision_end|>where is it!"
A, B, C, D, T, S = range(6)
SLOW = 7
"""The dimension of a head that the rotary embedding hardly turns."""


def planted(*, sink: bool = False) -> Model:
    """The model; with `sink` every head of layer 1 sends what all tokens look for to the first token."""
    model = random(json.loads((CHECKPOINTS / "qwen3_vl" / "config.json").read_text()), seed=3)
    with torch.no_grad():
        _see(model)
        _speak(model)
        _copy(model.layers[LAYER].self_attn)
        if sink:
            _look_at_first(model.layers[1].self_attn)
    return model


def board(cell: tuple[int, int] | None = CELL) -> Image.Image:
    """A black image of 8 × 8 tokens, one of them white; None leaves it black."""
    image = Image.new("RGB", (256, 256), "black")
    if cell is not None:
        top, left = cell[0] * 32, cell[1] * 32
        ImageDraw.Draw(image).rectangle((left, top, left + 31, top + 31), fill="white")
    return image


def question_prompt(model: Model, cell: tuple[int, int] | None = CELL) -> Inputs:
    """The prompt about a board."""
    return model.prepare(PROMPT, images=[board(cell)])


def _see(model: Model) -> None:
    """Patches to features through the vision encoder: brightness beside constant channels, so that norms are smooth."""
    vision = model.vision
    mean = torch.full_like(vision.patch_embed.proj.weight[0], 1 / vision.patch_embed.proj.weight[0].numel())
    vision.patch_embed.proj.weight.zero_()
    vision.patch_embed.proj.weight[0], vision.patch_embed.proj.weight[1] = mean, -mean
    vision.patch_embed.proj.bias.zero_()
    vision.patch_embed.proj.bias[2:4] = torch.tensor([2.0, -2.0])
    vision.pos_embed.weight.zero_()
    for layer in vision.layers:
        for linear in (layer.attn.proj, layer.mlp.linear_fc2):
            linear.weight.zero_(), linear.bias.zero_()
    for merger in (vision.merger, *vision.deepstack_merger_list):
        for linear in (merger.linear_fc1, merger.linear_fc2):
            linear.weight.zero_(), linear.bias.zero_()
    merger, width = vision.merger, vision.hidden_size
    merger.norm.weight.fill_(1), merger.norm.bias.zero_()
    merger.linear_fc1.weight[0, [0, width, 2 * width, 3 * width]] = 0.75
    merger.linear_fc2.weight[A, 0] = 1.0
    merger.linear_fc2.bias[B] = 1.0


def _speak(model: Model) -> None:
    """Words are C, the last one D, the answer T; norms do nothing of their own; layers write nothing."""
    table, tokenizer = model.language_model.embed_tokens.weight, model.tokenizer
    table.zero_()
    table[:, C] = 1.0
    for text, direction in (("!", D), (ANSWER, T), ("<|vision_start|>", S)):
        (at,) = tokenizer.encode(text)
        table[at].zero_()
        table[at, direction] = 1.0
    model.language_model.norm.weight.fill_(1)
    for layer in model.layers:
        layer.input_layernorm.weight.fill_(1), layer.post_attention_layernorm.weight.fill_(1)
        layer.self_attn.o_proj.weight.zero_(), layer.mlp.down_proj.weight.zero_()


def _copy(attention) -> None:
    size = attention.head_dim
    mine, kv = slice(HEAD * size, (HEAD + 1) * size), slice(0, size)
    attention.q_proj.weight[mine] = 0
    attention.q_proj.weight[HEAD * size + SLOW, D] = 1
    attention.k_proj.weight[kv] = 0
    attention.k_proj.weight[SLOW, A] = 1
    attention.q_norm.weight.fill_(2), attention.k_norm.weight.fill_(2)
    attention.v_proj.weight[kv] = 0
    attention.v_proj.weight[0, A] = 1
    attention.o_proj.weight[T, HEAD * size] = 1


def _look_at_first(attention) -> None:
    size = attention.head_dim
    attention.q_proj.weight.zero_(), attention.k_proj.weight.zero_()
    attention.q_proj.weight[SLOW::size] = 1
    attention.k_proj.weight[SLOW::size, S] = 1
    attention.q_norm.weight.fill_(2), attention.k_norm.weight.fill_(2)
