"""The training's quick way from images to inputs gives what the processor gives, and asks what has one answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from training.nano import collate, draw, files, questions, world
from training.nano.batches import Layout, Recipe, Writer, make
from training.nano.world import Source, Thing

LAYOUTS = {
    "one": Layout(((96, 128),)),
    "tall": Layout(((160, 64),)),
    "pair of two sizes": Layout(((64, 64), (96, 64))),
    "video": Layout(((64, 96),), 3),
    "long video": Layout(((96, 64),), 4),
}


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(Tokenizer.from_file(str(files.BUNDLE / "tokenizer.json")))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_inputs_equal_the_processors(nano, writer: Writer, layout: Layout) -> None:
    batch = make(np.random.default_rng(1), writer, Recipe(turns=3, tokens=100), layout=layout)
    fast = collate.inputs(batch, writer)
    for row in range(3):
        exact = _processed(nano, batch, row, layout)
        length = exact["input_ids"].shape[1] - 1  # the template ends the last turn with a line break
        assert fast.input_ids[row, :length].tolist() == exact["input_ids"][0, :length].tolist()
        assert torch.equal(fast.position_ids[:, row, :length], exact.position_ids[:, 0, :length])
        assert torch.equal(fast.mm_token_type_ids[row, :length], exact["mm_token_type_ids"][0, :length])
        key = "pixel_values_videos" if layout.grids else "pixel_values"
        assert torch.equal(fast[key].unflatten(0, (len(batch.ids), -1))[row], exact[key])


def _processed(nano, batch, row: int, layout: Layout):
    media = [{"type": "video"}] if layout.grids else [{"type": "image"}] * len(layout.sizes)
    messages = []
    for asked in batch.asked[row]:
        messages.append({"role": "user", "content": [*media, {"type": "text", "text": asked.text}]})
        messages.append({"role": "assistant", "content": asked.answer})
        media = []
    prompt = nano.processor.apply_chat_template(messages, add_generation_prompt=False)
    if not layout.grids:
        return nano.processor(text=prompt, images=[picture[row, 0] for picture in batch.pixels])
    timing = batch.timings[row]
    told = {"fps": timing.rate, "total_num_frames": timing.total, "frames_indices": list(timing.indices)}
    return nano.processor(text=prompt, videos=[batch.pixels[0][row]], video_metadata=[told], do_sample_frames=False)


def test_targets_are_the_answers_and_the_ends_of_their_turns(writer: Writer) -> None:
    batch = make(np.random.default_rng(0), writer, Recipe(tokens=400))
    for row, asked in enumerate(batch.asked):
        chosen = batch.ids[row][batch.answers[row]].tolist()
        assert chosen == [i for q in asked for i in (*writer.encode(q.answer), writer.end)]


def test_words_of_the_world_are_one_token(writer: Writer) -> None:
    for word in files.WORDS:
        assert len(writer.encode(word)) == len(writer.encode(f" {word}")) == 1, word


def test_any_text_survives_the_tokenizer(nano) -> None:
    text = "Ünïcode, 日本語 and \U0001f600: 12.5 % of <tags> \t\r\n end"
    assert nano.tokenizer.decode(nano.tokenizer.encode(text)) == text


def test_the_tokenizer_in_the_package_is_the_one_that_the_script_builds() -> None:
    built = files.build_tokenizer().to_str(pretty=True)
    assert (files.BUNDLE / "tokenizer.json").read_text(encoding="utf-8") == built


def test_examination_digits_are_no_training_digits() -> None:
    parts = draw.digits()
    seen = {scan.tobytes() for part in ("train", "validation") for scan in parts[part][0]}
    assert len(parts["test"][0]) == draw.HELD_OUT_DIGITS
    assert not seen & {scan.tobytes() for scan in parts["test"][0]}


@pytest.mark.parametrize(
    ("x", "y", "where"),
    [(20, 50, "left"), (50, 50, "center"), (72, 90, "bottom"), (50, 10, "top"), (90, 85, None), (40, 50, None)],
)
def test_a_place_is_named_only_where_it_is_clear(x: float, y: float, where: str | None) -> None:
    assert questions.place(Thing("circle", "red", x, y, 10), 100, 100) == where


def test_every_question_has_one_answer() -> None:
    """Whatever is asked twice of one image, in the same words, is answered the same."""
    rng = np.random.default_rng(3)
    for _ in range(150):
        scene = world.scene(rng, 96, 128, source=Source())
        answers: dict[str, str] = {}
        for _ in range(4):
            for asked in questions.about_scene(rng, scene):
                assert answers.setdefault(asked.text, asked.answer) == asked.answer, asked


def test_labels_lie_where_the_thing_is() -> None:
    scene = world.scene(np.random.default_rng(5), 128, 128, source=Source(), kinds=["circle"])
    thing = scene.things[0]
    row, column = int(thing.y // world.CELL), int(thing.x // world.CELL)
    ninth = 3 * int(3 * thing.y / 128) + int(3 * thing.x / 128)
    expected = [world.CONTENTS.index("circle"), world.TONES.index(thing.color), ninth, 1]
    assert scene.cells[row, column].tolist() == expected


def test_every_thing_has_its_middle_in_one_token() -> None:
    rng = np.random.default_rng(6)
    for _ in range(30):
        scene = world.scene(rng, 128, 96, source=Source(), crowded=1.0)
        crowd = [(int(t.y // world.CELL), int(t.x // world.CELL)) for t in scene.things]
        if len(set(crowd)) == len(crowd):
            assert scene.cells[..., 3].sum() == len(crowd)
            assert all(scene.cells[(*at, 3)] == 1 for at in crowd)


def test_a_clip_turns_in_the_grid_that_its_answer_names() -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        clip = world.clip(rng, 4, 64, 64)
        if clip.turn is None or clip.move is not None:
            continue
        changed = [f for f in range(1, 8) if (clip.frames[f] != clip.frames[0]).any()]
        assert changed[0] // 2 == clip.turn
