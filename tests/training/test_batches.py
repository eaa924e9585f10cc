"""The training's quick way from images to inputs gives what the processor gives, and asks what has one answer."""

from __future__ import annotations

import numpy as np
import pytest
import skimage.color
import torch
from tokenizers import Tokenizer

from training.nano import arrange, collate, colors, draw, exam_draw, files, fonts, questions, world
from training.nano.batches import Layout, Recipe, Writer, make
from training.nano.world import HELD_OUT_RATES, LABELS, Contents, Look, Mix, Thing

LAYOUTS = {
    "one": Layout(((96, 128),)),
    "tall": Layout(((160, 64),)),
    "pair of two sizes": Layout(((64, 64), (96, 64))),
    "video": Layout(((64, 96),), 3),
    "long video": Layout(((96, 64),), 4),
}


@pytest.fixture(scope="module")
def writer() -> Writer:
    """Writes with the bundled tokenizer."""
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
    for question in batch.questions[row]:
        messages.append({"role": "user", "content": [*media, {"type": "text", "text": question.text}]})
        messages.append({"role": "assistant", "content": question.answer})
        media = []
    prompt = nano.processor.apply_chat_template(messages, add_generation_prompt=False)
    if not layout.grids:
        return nano.processor(text=prompt, images=[image[row, 0] for image in batch.pixels])
    timing = batch.timings[row]
    metadata = {"fps": timing.rate, "total_num_frames": timing.total, "frames_indices": list(timing.indices)}
    return nano.processor(text=prompt, videos=[batch.pixels[0][row]], video_metadata=[metadata], do_sample_frames=False)


def test_targets_are_the_answers_and_the_ends_of_their_turns(writer: Writer) -> None:
    batch = make(np.random.default_rng(0), writer, Recipe(tokens=400))
    for row, question in enumerate(batch.questions):
        selection = batch.ids[row][batch.answers[row]].tolist()
        assert selection == [i for q in question for i in (*writer.encode(q.answer), writer.end)]


def test_words_of_the_world_are_one_token(writer: Writer) -> None:
    built = Writer(files.build_tokenizer())
    for encode, words in ((writer.encode, files.WORDS), (built.encode, (*files.WORDS, *files.NEW_WORDS))):
        for word in words:
            assert len(encode(word)) == len(encode(f" {word}")) == 1, word


def test_any_text_survives_the_tokenizer(nano) -> None:
    text = "Ünïcode, 日本語 and \U0001f600: 12.5 % of <tags> \t\r\n end"
    assert nano.tokenizer.decode(nano.tokenizer.encode(text)) == text


def test_the_tokenizer_in_the_package_is_the_one_that_the_script_builds_of_its_words() -> None:
    built = files.build_tokenizer(files.WORDS, merged=470).to_str(pretty=True)
    assert (files.BUNDLE / "tokenizer.json").read_text(encoding="utf-8") == built


def test_examination_digits_are_no_training_digits() -> None:
    parts = draw.digits()
    seen = {scan.tobytes() for part in ("train", "validation") for scan in parts[part][0]}
    assert len(parts["test"][0]) == draw.HELD_OUT_DIGITS
    assert not seen & {scan.tobytes() for scan in parts["test"][0]}


def test_faces_of_the_examination_are_not_trained_on() -> None:
    stems = {path.stem for path in fonts.training_faces()}
    assert len(stems) >= 8
    assert not stems & set(exam_draw.FACES)


def test_every_pair_of_two_colors_has_tones_that_the_contrast_rule_allows() -> None:
    rng = np.random.default_rng(0)
    for ground in colors.NAMES:
        for ink in colors.NAMES:
            drawn = [(colors.tone(rng, ground), i) for i in range(8)]
            tones = [(base, colors.tone_on(rng, ink, base)) for base, _ in drawn if ink != ground]
            passed = [(base, tone) for base, tone in tones if tone is not None]
            assert passed or ink == ground, (ink, ground)
            assert all(colors.distance(tone, base) >= colors.CONTRAST for base, tone in passed)


def test_colors_are_measured_as_elsewhere() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (50, 3))
    np.testing.assert_allclose(colors.lab(rgb), skimage.color.rgb2lab(rgb / 255), atol=0.02)


def test_a_near_miss_is_nearest_to_its_own_name() -> None:
    for name, tones in colors.near_misses().items():
        assert len(tones) > 20, name
        for tone in tones[::40]:
            near = {n: min(colors.distance(tone, np.array(t)) for t in listed) for n, listed in colors.COLORS.items()}
            assert min(near, key=near.__getitem__) == name
            assert near[name] <= colors.NEAREST


@pytest.mark.parametrize("arrangement", arrange.ARRANGEMENTS)
def test_things_stand_apart_and_within_the_image(arrangement: str) -> None:
    rng = np.random.default_rng(2)
    for count in range(1, world.MOST + 1):
        for _ in range(10):
            middles, sizes = arrange.arrange(rng, arrangement, [20] * count, 96, 128)
            assert len(middles) == len(sizes) == count
            for i, ((x, y), size) in enumerate(zip(middles, sizes, strict=True)):
                assert -1 <= x - size / 2 <= x + size / 2 <= 129
                assert -1 <= y - size / 2 <= y + size / 2 <= 97
                for (a, b), other in zip(middles[:i], sizes[:i], strict=True):
                    assert max(abs(x - a), abs(y - b)) >= (size + other) / 2


def test_zero_to_six_things_are_counted_in_every_arrangement() -> None:
    rng, mix, seen = np.random.default_rng(4), Mix(noise=0, empty=0, counted=1), set()
    for _ in range(600):
        what = world.contents(rng, mix, (128, 128), 0.0)
        seen.add((what.arrangement, len(what.kinds)))
    assert {count for _, count in seen} == set(range(world.MOST + 1))
    assert seen >= {(a, count) for a in arrange.ARRANGEMENTS for count in range(2, world.MOST + 1)}


@pytest.mark.parametrize("shape", draw.SHAPES)
def test_a_turned_or_outlined_shape_stays_in_its_square(shape: str) -> None:
    for turn in (0, 20, 45, 90, 200):
        filled, line = draw.shape_mask(shape, 40, turn), draw.shape_mask(shape, 40, turn, 3)
        assert 0.2 < filled.mean() < 0.85
        assert line.sum() < 0.75 * filled.sum()
        assert (line <= filled + 1e-3).all()
        assert filled[[0, -1]].max(initial=0) <= 1
    assert draw.shape_mask("square", 40, 45).sum() < draw.shape_mask("square", 40, 0).sum()


def test_no_training_video_has_a_held_out_rate() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        timing = world.timing(rng, int(rng.integers(1, 7)))
        step = timing.indices[1] - timing.indices[0]
        for rate in HELD_OUT_RATES:
            assert abs(timing.rate / rate - 1) > 0.09
            assert abs(timing.rate / max(step, 1) / rate - 1) > 0.09


@pytest.mark.parametrize(
    ("x", "y", "where"),
    [(20, 50, "left"), (50, 50, "center"), (72, 90, "bottom"), (50, 10, "top"), (90, 85, None), (40, 50, None)],
)
def test_a_place_is_named_only_where_it_is_clear(x: float, y: float, where: str | None) -> None:
    assert questions.position(Thing("circle", "red", x, y, 10), 100, 100) == where


def drawn(seed: int, count: int, mix: Mix, size: tuple[int, int] = (96, 128)) -> list[world.Scene]:
    rng = np.random.default_rng(seed)
    return [world.scene(rng, *size, world.contents(rng, mix, size, 0.0), Look()) for _ in range(count)]


def test_every_question_has_one_answer() -> None:
    """Whatever is asked twice of one image, in the same words, is answered the same."""
    rng = np.random.default_rng(3)
    for scene in drawn(3, 150, Mix()):
        answers: dict[str, str] = {}
        for _ in range(4):
            for question in questions.about_scene(rng, scene):
                assert answers.setdefault(question.text, question.answer) == question.answer, question


def test_what_is_not_there_is_none_and_noise_shows_nothing() -> None:
    rng = np.random.default_rng(9)
    for scene in drawn(9, 60, Mix(counted=0.2)):
        for question in questions.about_scene(rng, scene):
            if question.task == "absent":
                assert question.answer == questions.NONE
                assert all(
                    thing.color not in question.text or thing.kind not in question.text for thing in scene.things
                )
    (noise,) = drawn(0, 1, Mix(noise=1.0))
    answers = {q.task: q.answer for q in questions.about_scene(rng, noise)}
    assert (answers["nothing"], answers["count"], answers["exists"]) == (questions.NOTHING, "0", "no")


def test_no_two_questions_of_a_chat_tell_the_same() -> None:
    rng = np.random.default_rng(10)
    for scene in drawn(10, 40, Mix()):
        selection = questions.choose(rng, questions.about_scene(rng, scene), 5, questions.WEIGHTS)
        topics = [question.topic for question in selection if question.topic]
        assert len(set(topics)) == len(topics)
        assert sum(question.task == "count" for question in selection) <= 1


def test_labels_lie_where_the_thing_is() -> None:
    scene = world.scene(np.random.default_rng(5), 128, 128, Contents(["circle"]), Look())
    thing = scene.things[0]
    row, column = int(thing.y // world.CELL), int(thing.x // world.CELL)
    ninth = 3 * int(3 * thing.y / 128) + int(3 * thing.x / 128)
    kind, color = world.KINDS.index("circle"), colors.NAMES.index(thing.color)
    labels = scene.cells[row, column].tolist()
    assert labels[:4] == [world.CONTENTS.index("circle"), color, ninth, 1]
    parts = [i for i, value in enumerate(labels[4:]) if value]
    assert parts == [kind, len(world.KINDS) + color]
    assert scene.cells.shape == (4, 4, LABELS)


def test_every_thing_has_its_middle_in_one_token() -> None:
    for scene in drawn(6, 30, Mix(noise=0, empty=0, counted=1), (128, 96)):
        kinds, every = len(world.KINDS), scene.cells[..., 4:].reshape(-1, world.PARTS)
        tokens = [(int(t.y // world.CELL), int(t.x // world.CELL)) for t in scene.things]
        if len(set(tokens)) == len(tokens):
            assert scene.cells[..., 3].sum() == len(tokens)
            assert every[:, :kinds].sum() == every[:, kinds:].sum() == len(tokens)


def test_a_video_changes_in_the_grid_that_its_answer_names() -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        video = world.video(rng, 4, 64, 64, Look())
        if video.change is None or video.move is not None:
            continue
        changed = [f for f in range(1, 8) if (video.frames[f] != video.frames[0]).any()]
        assert changed[0] // 2 == video.change
