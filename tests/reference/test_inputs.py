"""Prompts, ids, positions and window order against transformers, on random input."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conversation import IMAGE, PUBLISHED, VIDEO, text, user
from transformers import PreTrainedTokenizerFast, Qwen2VLModel, Qwen3_5Model, Qwen3VLModel
from transformers.vision_utils import get_vision_window_index

from cutaway.inputs.batch.mrope import mrope_positions
from cutaway.inputs.geometry.layout import window_order
from cutaway.inputs.text.chat_template import ChatTemplate
from cutaway.inputs.text.messages import read_messages
from cutaway.inputs.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data" / "oracle" / "ckpt"


def random_batch(split: bool, generator: torch.Generator):
    """Rows of text, images and videos, padded on a random side; with `split` a video's grids stand apart."""

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    rows, images, videos = [], [], []
    for _ in range(number(1, 4)):
        row = [0] * number(1, 5)
        for _ in range(number(0, 4)):
            kind = number(1, 3)
            grid = (1 if kind == 1 else number(1, 5), 2 * number(1, 5), 2 * number(1, 5))
            (images if kind == 1 else videos).append(grid)
            cells = grid[1] * grid[2] // 4
            row += ([kind] * cells + [0] * number(1, 4)) * grid[0] if split else [kind] * cells * grid[0] + [0]
        rows.append(row)
    length, left = max(map(len, rows)), number(0, 2)
    pads = [[0] * (length - len(row)) for row in rows]
    types = torch.tensor([pad + row if left else row + pad for row, pad in zip(rows, pads, strict=True)])
    ones = [[1] * len(row) for row in rows]
    mask = torch.tensor([pad + row if left else row + pad for row, pad in zip(ones, pads, strict=True)])
    return types, mask, *(torch.tensor(grids, dtype=torch.int64).reshape(-1, 3) for grids in (images, videos))


@pytest.mark.parametrize("theirs", [Qwen3VLModel, Qwen3_5Model])
@pytest.mark.parametrize("seed", range(25))
def test_positions_of_stamped_families(theirs, seed: int) -> None:
    types, mask, images, videos = random_batch(True, torch.Generator().manual_seed(seed))
    reference = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    reference.get_vision_position_ids = lambda *options, **named: theirs.get_vision_position_ids(
        reference, *options, **named
    )
    expected, deltas = theirs.get_rope_index(reference, types, types, images, videos, attention_mask=mask)
    positions, following = mrope_positions(types, mask, images, videos, timestamps=True)
    assert torch.equal(positions, expected)
    assert torch.equal(following - mask.sum(-1), deltas.flatten())


@pytest.mark.parametrize("seed", range(25))
def test_positions_of_images_on_the_first_family(seed: int) -> None:
    types, mask, images, _ = random_batch(True, torch.Generator().manual_seed(seed))
    types = torch.where(types == 2, 0, types)  # on videos the two differ: ours is the trained rule
    reference = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    reference.get_vision_position_ids = lambda *options, **named: Qwen2VLModel.get_vision_position_ids(
        reference, *options, **named
    )
    expected, deltas = Qwen2VLModel.get_rope_index(reference, types, types, images, attention_mask=mask)
    positions, following = mrope_positions(types, mask, images, timestamps=False)
    assert torch.equal(positions, expected)
    assert torch.equal(following - mask.sum(-1), deltas.flatten())


@pytest.mark.parametrize("seed", range(25))
def test_window_order(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    time, height, width = (int(torch.randint(1, high, (1,), generator=generator)) for high in (4, 15, 15))
    index, _ = get_vision_window_index(torch.tensor([[time, 2 * height, 2 * width]]), 2, 112, 14)
    assert window_order((time, height, width), 4).tolist() == index.tolist()


CONVERSATIONS = [
    [user(text("hi"))],
    [
        {"role": "system", "content": "S"},
        user(text("a"), IMAGE, VIDEO, text("b")),
        {"role": "assistant", "content": "c"},
    ],
    [
        {"role": "user", "content": "é <b> 'q'"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "ü", "arguments": {}}}]},
    ],
]


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("options", [{}, {"add_vision_id": True}, {"tools": [{"name": "f", "d": "é<"}]}])
@pytest.mark.parametrize("prompt", [True, False])
def test_prompts(messages, options, prompt: bool) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "qwen3_vl" / "tokenizer.json"))
    for message in messages:
        message.setdefault("content", "")
    sources = [PUBLISHED] + [
        ChatTemplate.from_folder(DATA / family).text() for family in ("qwen2_vl", "qwen3_vl", "qwen3_5")
    ]
    for source in sources:
        expected = theirs.apply_chat_template(
            messages, chat_template=source, tokenize=False, add_generation_prompt=prompt, **options
        )
        ours = ChatTemplate(source).render(read_messages(messages), add_generation_prompt=prompt, **options)
        assert ours == expected


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_ids_and_texts(family: str) -> None:
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(DATA / family / "tokenizer.json"), clean_up_tokenization_spaces=False
    )
    ours = Tokenizer.from_folder(DATA / family)
    case = json.loads((DATA.parent / "out" / family / "multi_turn.json").read_text())
    for words in [*case["text"], "<think>é e\u0301 हिन्दी\n\n  x</think><|im_end|>", "", "\x00 \u200d👩‍👩‍👧"]:
        ids = theirs.encode(words, add_special_tokens=False)
        assert ours.encode(words) == ids
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
