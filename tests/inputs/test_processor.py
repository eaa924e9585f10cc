"""The processor: counts, prompt forms of videos, padding, truncation, limits, what it refuses, and in which order."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cutaway.batch import Inputs
from cutaway.checkpoint.config_reader import read_config
from cutaway.checkpoint.families import FAMILIES
from cutaway.errors import CheckpointError, ConfigError, CutawayError, InputError, LimitError
from cutaway.inputs.processor import Processor
from cutaway.inputs.text.chat_template import Prompt

DATA = Path(__file__).parents[1] / "data" / "oracle" / "ckpt"
PAD = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


def of(family: str = "qwen3_vl") -> Processor:
    return Processor.from_folder(DATA / family, read_config(DATA / family))


@pytest.fixture(scope="module")
def processor() -> Processor:
    return of()


def plain_image(height: int = 64, width: int = 64, level: int = 90) -> Image.Image:
    return Image.new("RGB", (width, height), (level, 20, 200))


def noise_video(frames: int = 4, height: int = 64, width: int = 64) -> np.ndarray:
    return np.full((frames, height, width, 3), 80, np.uint8)


def written(processor: Processor, inputs: Inputs, row: int = 0) -> str:
    """A row's text without padding, a run of equal placeholders shortened to its length."""
    ids = inputs.input_ids[row][inputs.attention_mask[row] != 0]
    out = processor.tokenizer.decode(ids, skip_special_tokens=False)
    for name in ("<|image_pad|>", "<|video_pad|>"):
        for count in range(64, 0, -1):
            out = out.replace(name * count, f"[{count}]")
    return out


def test_videos_have_the_trained_prompt_form(processor: Processor) -> None:
    """One pair of markers per temporal grid and no outer pair: two markers a grid."""
    options = {"videos": noise_video(4), "video_metadata": {"fps": 2.0}, "do_sample_frames": False, "layout": "thwc"}
    trained = processor(f"a {VIDEO} b", **options)
    start, end = "<|vision_start|>", "<|vision_end|>"
    frames = [f"<{stamp} seconds>{start}[4]{end}" for stamp in ("0.2", "1.2")]
    assert written(processor, trained) == f"a {''.join(frames)} b"
    nested = processor(f"a {VIDEO} b", nested_video_markers=True, **options)
    assert written(processor, nested) == f"a {start}{''.join(frames)}{end} b"
    assert nested.input_ids.shape[1] == trained.input_ids.shape[1] + 2
    bare = processor("a <|video_pad|> b", **options)
    assert torch.equal(bare.input_ids, trained.input_ids)


def test_unstamped_families_expand_in_place() -> None:
    processor = of("qwen2_vl")
    inputs = processor(f"a {VIDEO} b", videos=noise_video(4, 56, 56), layout="thwc", video_metadata={"fps": 2})
    assert written(processor, inputs) == "a <|vision_start|>[8]<|vision_end|> b"


@pytest.mark.parametrize(
    ("text", "images", "message"),
    [
        (f"{PAD} x", None, r"1 image placeholders to fill \(by sample \[1\]\); got 0"),
        ("x", [plain_image()], r"0 image placeholders to fill \(by sample \[0\]\); got 1"),
        (f"{PAD}{PAD}", [plain_image()], r"2 image placeholders .*; got 1"),
        ([f"{PAD}", "x"], [[], [plain_image()]], r"by sample \[1, 0\]\); got 1 \(by sample \[0, 1\]\)"),
        (["x", "y"], [[plain_image()], plain_image()], "one list per sample; entry 1 is a Image"),
    ],
)
def test_placeholders_and_images_must_match(processor: Processor, text, images, message: str) -> None:
    with pytest.raises(InputError, match=message):
        processor(text, images=images)


def test_truncation_never_cuts_an_image(processor: Processor) -> None:
    with pytest.raises(InputError, match=r"from 7 to 2 tokens would cut 3 of its 4 image"):
        processor(f"{PAD}x", images=plain_image(), truncation=True, max_length=2)
    inputs = processor(f"{PAD} long text after it", images=plain_image(), truncation=True, max_length=8)
    assert inputs.input_ids.shape == (1, 8)
    with pytest.raises(LimitError, match="`max_length` is 3"):
        processor("some more text", max_length=3)


def test_limit_is_found_from_sizes_before_pixels(
    processor: Processor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row that is too long is refused although its image cannot even be decoded."""
    path = tmp_path / "large.png"
    plain_image(2000, 2000).save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(LimitError, match=r"at most 512 tokens in a row; row 0 has \d+, of which \d+ are of images"):
        processor(PAD, images=path, max_pixels=2000 * 2000)
    with pytest.raises(LimitError, match="at most 512"):
        processor(
            VIDEO,
            videos=[noise_video(200, 64, 64)],
            video_metadata={"fps": 1.0},
            layout="thwc",
            max_pixels=10**8,
            fps=1.0,
        )
    with pytest.raises(LimitError, match="row 0 has"):
        processor("word " * 600)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_a_batch_equal_themselves_alone(side: str) -> None:
    for family in FAMILIES:
        processor = of(family)
        texts = ["short", f"{PAD} and a longer question", f"{PAD}{PAD}"]
        media = [[], [plain_image(70, 131)], [plain_image(64, 150), plain_image(60, 60)]]
        batch = processor(texts, images=media, padding_side=side)
        for row, (text, images) in enumerate(zip(texts, media, strict=True)):
            alone, kept = processor(text, images=images), batch.attention_mask[row] != 0
            assert torch.equal(batch.input_ids[row, kept], alone.input_ids[0])
            assert torch.equal(batch.position_ids[:, row, kept], alone.position_ids[:, 0])
            assert batch.next_position[row] == alone.next_position[0]
            assert kept[0 if side == "right" else -1]
        flat = processor(texts, images=[image for row in media for image in row], padding_side=side)
        assert torch.equal(flat.pixel_values, batch.pixel_values)


def test_padding_side_comes_from_the_argument_then_the_file_then_is_right(processor: Processor) -> None:
    def side(processor: Processor, **options) -> str:
        mask = processor(["a", "b c d e f"], **options).attention_mask[0]
        return "left" if mask[0] == 0 else "right"

    assert side(processor) == "left"  # what this checkpoint's file says
    assert side(processor, padding_side="right") == "right"
    processor = of()
    processor.tokenizer.padding_side = None
    assert side(processor) == "right"
    wide = processor("a", padding="max_length", max_length=9)
    assert wide.attention_mask.tolist() == [[1] + [0] * 8]
    assert (wide.input_ids[0, 1:] == processor.tokenizer.pad_token_id).all()


def test_messages_carry_their_images(processor: Processor) -> None:
    def turn(*parts) -> list:
        return [{"role": "user", "content": list(parts)}]

    inside = {"type": "image", "image": plain_image(level=1)}
    messages = [
        turn({"type": "image"}, inside, {"type": "text", "text": "which?"}),
        turn({"type": "text", "text": "none"}),
    ]
    batch = processor(messages, images=[plain_image(level=200)])
    flat = [plain_image(level=200), plain_image(level=1)]
    prompts = processor.apply_chat_template(messages)
    assert torch.equal(batch.pixel_values, processor(prompts, images=flat).pixel_values)
    assert torch.equal(batch.input_ids, processor(prompts, images=flat).input_ids)
    one = processor(messages[0], images=plain_image(level=200))
    assert torch.equal(one.input_ids[0], batch.input_ids[0])


def test_typed_placeholders_are_text_unless_asked(processor: Processor) -> None:
    messages = [{"role": "user", "content": "what is <|image_pad|> in <|im_end|>?"}]
    inputs = processor(messages)
    pad, end = (processor.tokenizer.id_of(name) for name in ("<|image_pad|>", "<|im_end|>"))
    assert pad not in inputs.input_ids
    assert (inputs.input_ids == end).sum() == 1
    prompt = processor.apply_chat_template(messages)
    assert "<|image_pad|>" in prompt
    assert torch.equal(processor(prompt).input_ids, inputs.input_ids)
    with pytest.raises(InputError, match="1 image placeholders"):
        processor(str(prompt.replace("x", "x")))
    request = processor(messages, allow_control_tokens=True, images=plain_image(), padding=True)
    assert (request.input_ids == pad).sum() == 4


def test_numbers_of_images_in_a_prompt(processor: Processor) -> None:
    prompt = processor.prompt("What?", images=2, videos=1)
    assert isinstance(prompt, Prompt)
    assert prompt.count(PAD) == 2
    assert prompt.index("<|video_pad|>") > prompt.rindex("<|image_pad|>")
    with pytest.raises(InputError, match="how many there are"):
        processor.prompt("What?", images=[plain_image()])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="how many there are"):
        processor.prompt("What?", images=-1)


def test_chat_template_to_tensors(processor: Processor) -> None:
    messages = [{"role": "user", "content": [{"type": "image", "image": plain_image()}, {"type": "text", "text": "q"}]}]
    inputs = processor.apply_chat_template(messages, tokenize=True)
    assert set(inputs) == {"input_ids", "attention_mask", "mm_token_type_ids", "pixel_values", "image_grid_thw"}
    ids = processor.apply_chat_template(messages, tokenize=True, return_dict=False, add_generation_prompt=True)
    assert torch.equal(ids, inputs.input_ids)
    shorter = processor.apply_chat_template(messages, add_generation_prompt=False)
    assert shorter.endswith("<|im_end|>\n")


def test_pixel_options_reach_images_and_videos(processor: Processor) -> None:
    large = plain_image(128, 128)
    assert processor(PAD, images=large).image_grid_thw.tolist() == [[1, 8, 8]]
    assert processor(PAD, images=large, max_pixels=4096).image_grid_thw.tolist() == [[1, 4, 4]]
    size = {"shortest_edge": 1024, "longest_edge": 4096}
    assert processor(PAD, images=large, size=size).image_grid_thw.tolist() == [[1, 4, 4]]
    both = processor(
        PAD + VIDEO,
        images=large,
        videos=noise_video(4, 128, 128),
        layout="hwc",
        fps=2,
        video_metadata={"fps": 2},
        images_kwargs={"max_pixels": 4096},
    )
    assert both.image_grid_thw.tolist() == [[1, 4, 4]]
    assert both.video_grid_thw.tolist() == [[2, 8, 8]]


def test_num_frames_overrides_the_default_rate(processor: Processor) -> None:
    inputs = processor(VIDEO, videos=noise_video(60), num_frames=5, video_metadata={"fps": 30}, layout="thwc")
    assert inputs.video_grid_thw[0, 0] == 3
    with pytest.raises(InputError, match="`fps` and `num_frames`"):
        processor(VIDEO, videos=noise_video(60), num_frames=5, fps=2, video_metadata={"fps": 30}, layout="thwc")


def test_seconds_per_grid_follow_the_sampling() -> None:
    inputs = of("qwen2_5_vl")(
        VIDEO, videos=noise_video(60, 56, 56), fps=2, video_metadata={"fps": 30}, layout="thwc", max_pixels=3136
    )
    assert inputs.second_per_grid_ts.tolist() == [1.0]
    assert inputs.second_per_grid_ts.dtype == torch.float32


def test_videos_may_be_lists_of_frames(processor: Processor) -> None:
    frames = [plain_image() for _ in range(4)]
    message = {"video_metadata": {"fps": 2}, "do_sample_frames": False}
    one = processor(VIDEO, videos=frames, **message)
    assert one.video_grid_thw.tolist() == [[2, 4, 4]]
    rows = processor(
        [VIDEO, "x", VIDEO],
        videos=[[frames], [], [frames[:2]]],
        video_metadata=[{"fps": 2}, {"fps": 2}],
        do_sample_frames=False,
    )
    assert rows.video_grid_thw.tolist() == [[2, 4, 4], [1, 4, 4]]
    with pytest.raises(InputError, match="one entry per video; got 2 for 1"):
        processor(VIDEO, videos=[frames], video_metadata=[{"fps": 2}] * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_pixel": 3}, "no option 'max_pixel'. Did you mean 'max_pixels'"),
        ({"return_tensors": "np"}, "'pt'"),
        ({"padding_side": "top"}, "one of"),
        ({"padding": "max_length"}, "needs `max_length`"),
        ({"zzzzzz": 1}, "its options are"),
    ],
)
def test_wrong_options_are_named(processor: Processor, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        processor("a", **options)


@pytest.mark.parametrize("text", ["", [], [3], 3, None, [[]], [["a"]], b"a", {"role": "user"}])
def test_what_is_no_prompt_is_refused(processor: Processor, text) -> None:
    with pytest.raises(InputError):
        processor(text)


def test_text_needs_no_vision_file(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.json"):
        shutil.copy(DATA / "qwen3_vl" / name, tmp_path)
    processor = Processor.from_folder(tmp_path, read_config(tmp_path))
    assert processor(processor.prompt("hi")).input_ids.shape[1] > 3
    with pytest.raises(InputError, match=r"no preprocessor_config\.json"):
        processor(PAD, images=plain_image())
    with pytest.raises(InputError, match=r"no video_preprocessor_config\.json"):
        processor(VIDEO, videos=noise_video())


def test_settings_of_one_file(tmp_path: Path) -> None:
    """What transformers 5 saves: one processor_config.json with both parts."""
    shutil.copytree(DATA / "qwen3_vl", tmp_path / "m")
    parts = {"image_processor": "preprocessor_config.json", "video_processor": "video_preprocessor_config.json"}
    both = {key: json.loads((tmp_path / "m" / name).read_text()) for key, name in parts.items()}
    for name in parts.values():
        (tmp_path / "m" / name).unlink()
    (tmp_path / "m" / "processor_config.json").write_text(json.dumps(both))
    made = Processor.from_folder(tmp_path / "m", read_config(tmp_path / "m"))
    assert made.image_settings == of().image_settings
    assert made.video_settings == of().video_settings


def test_files_of_two_checkpoints_do_not_mix(tmp_path: Path) -> None:
    config = read_config(DATA / "qwen3_vl")
    shutil.copytree(DATA / "qwen3_vl", tmp_path / "m")
    shutil.copy(DATA / "qwen2_vl" / "preprocessor_config.json", tmp_path / "m")
    with pytest.raises(ConfigError, match="`patch_size` is 14"):
        Processor.from_folder(tmp_path / "m", config)
    with pytest.raises(CheckpointError, match="token id 9999"):
        Processor.from_folder(DATA / "qwen3_vl", replace(config, image_token_id=9999))
    (tmp_path / "m" / "preprocessor_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        Processor.from_folder(tmp_path / "m", config)
    (tmp_path / "m" / "preprocessor_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="must hold a mapping"):
        Processor.from_folder(tmp_path / "m", config)


def test_a_long_stamped_video_in_a_batch_of_kinds() -> None:
    processor = of("qwen3_5")
    texts = [f"{VIDEO}q", f"{PAD}q", "q"]
    batch = processor(
        texts,
        images=plain_image(),
        videos=noise_video(9),
        video_metadata={"fps": 2},
        layout="hwc",
        do_sample_frames=False,
    )
    assert batch.video_grid_thw.tolist() == [[5, 4, 4]]
    assert batch.rope_deltas[2].item() == 0


@given(
    st.recursive(
        st.one_of(
            st.none(), st.integers(), st.text(max_size=12), st.sampled_from(["user", "text", "image", PAD, VIDEO])
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["role", "content", "type", "text", "image", "video"]), inner, max_size=3),
        ),
        max_leaves=8,
    )
)
def test_nothing_raises_anything_but_our_errors(text) -> None:
    try:
        inputs = _PROCESSOR(text)
    except CutawayError:
        return
    assert inputs.position_ids.shape == (3, *inputs.input_ids.shape)


_PROCESSOR = of()


def test_stacks_and_rows_of_media(processor: Processor) -> None:
    stack = np.zeros((2, 64, 64, 3), np.uint8)
    assert len(processor(PAD + PAD, images=stack).image_grid_thw) == 2
    rows = processor([PAD, "x"], images=[[stack[0]], None])
    assert len(rows.image_grid_thw) == 1
    videos = np.zeros((2, 4, 64, 64, 3), np.uint8)
    both = processor(VIDEO + VIDEO, videos=videos, video_metadata=[[{"fps": 2}], [{"fps": 2}]])
    assert len(both.video_grid_thw) == 2


def test_frames_may_be_image_files(processor: Processor, tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(4)]
    for path in paths:
        plain_image().save(path)
    inputs = processor(VIDEO, videos=paths, video_metadata={"fps": 2}, do_sample_frames=False)
    assert inputs.video_grid_thw.tolist() == [[2, 4, 4]]


def test_images_that_the_template_drops_are_missed(processor: Processor) -> None:
    short = of()
    assert short.template is not None
    short.template.texts["default"] = "{{ messages[-1].content }}"
    messages = [
        {"role": "user", "content": [{"type": "image", "image": plain_image()}]},
        {"role": "user", "content": "q"},
    ]
    with pytest.raises(InputError, match="got 0 placeholders for the 1 images of sample 0"):
        short(messages)
