"""What `cutaway tokens` says against the prepared batch itself."""

from __future__ import annotations

import json

import av
import numpy as np
import pytest
from PIL import Image

from cutaway.checkpoint.config_reader import read_config
from cutaway.cli.app import FAULT, run
from cutaway.errors import InputError
from cutaway.inputs.geometry.overlay import CELL_LINE
from cutaway.inputs.processor import Processor
from cutaway.tasks.tokens import content, tokens


@pytest.fixture
def folder(oracle) -> str:
    """A checkpoint's folder; only its small files are read."""
    return str(oracle / "ckpt" / "qwen3_vl")


@pytest.fixture
def image_file(wide, tmp_path) -> str:
    wide.save(tmp_path / "wide.png")
    return str(tmp_path / "wide.png")


@pytest.fixture
def video_file(tmp_path) -> str:
    """Three seconds of grey at eight frames a second, 64 x 96."""
    path = str(tmp_path / "video.mp4")
    with av.open(path, "w") as file:
        stream = file.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for shade in range(24):
            frame = av.VideoFrame.from_ndarray(np.full((64, 96, 3), shade * 10, np.uint8))
            for packet in stream.encode(frame):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
    return path


def test_an_image_and_a_video(folder, image_file, video_file) -> None:
    result = tokens(folder, [image_file, video_file], text="What?")
    seen, video = result.media
    assert (seen.kind, seen.original_size, seen.grid, seen.patches, seen.tokens) == (
        "image",
        (64, 96),
        (1, 4, 6),
        24,
        6,
    )
    assert (video.kind, video.original_size, video.grid[1:]) == ("video", (64, 96), (4, 6))
    assert video.tokens == video.grid[0] * 6
    assert len(video.seconds) == video.grid[0]
    assert video.seconds[0] < video.seconds[-1] < 3


def test_the_runs_are_the_prompt(folder, image_file, video_file) -> None:
    result = tokens(folder, [image_file, video_file], text="What?")
    config = read_config(folder)
    items = content([image_file, video_file], ["image", "video"], "What?")
    inputs = Processor.from_folder(folder, config)([{"role": "user", "content": items}])
    assert result.length == inputs.input_ids.shape[1]
    assert [r.start for r in result.runs] == [sum(r.length for r in result.runs[:i]) for i in range(len(result.runs))]
    assert sum(r.length for r in result.runs) == result.length
    assert sum(r.length for r in result.runs if r.kind != "text") == sum(m.tokens for m in result.media)
    assert result.next_position == inputs.position_ids.max() + 1
    first = result.runs[1]
    assert (first.kind, first.height[1] - first.height[0], first.width[1] - first.width[0]) == ("image 0", 1, 2)
    assert first.time[0] == first.time[1] == first.height[0] == first.width[0] == first.start


def test_the_grid_is_drawn_over_the_image(folder, image_file, tmp_path) -> None:
    tokens(folder, [image_file], draw=tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as image:
        assert image.size == (480, 320)
        drawn = np.asarray(image.convert("RGB")).astype(int)
    lines = np.abs(drawn - CELL_LINE).sum(-1) == 0
    # An outline on both sides of each cell: two rows and three columns of tokens.
    assert lines.all(axis=1).sum() == 4
    assert lines.all(axis=0).sum() == 6
    # Each cell has its number: dark ink near its corner.
    inked = drawn.max(-1) < 90
    assert all(inked[r * 160 : r * 160 + 24, c * 160 : c * 160 + 24].any() for r in range(2) for c in range(3))


def test_a_video_is_drawn_by_its_first_frame(folder, video_file, tmp_path) -> None:
    tokens(folder, [video_file], draw=tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as drawn:
        assert drawn.size == (480, 320)


def test_what_cannot_be_drawn_or_read(folder, image_file, tmp_path) -> None:
    with pytest.raises(InputError, match=r"cannot be written as an image.*grid\.png"):
        tokens(folder, [image_file], draw=tmp_path / "grid.unknown")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match=r"images\[0\]|broken.png"):
        tokens(folder, [tmp_path / "broken.png"])


def test_the_command(folder, image_file, video_file, tmp_path, capsys) -> None:
    assert run(["tokens", "-m", folder, image_file, video_file, "--draw", str(tmp_path / "g.png")]) == 0
    shown = capsys.readouterr().out
    assert "64×96" in shown
    assert "video 0, grid 0" in shown
    assert (tmp_path / "g.png").is_file()
    assert run(["tokens", "-m", folder, image_file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["media"][0]["grid"] == [1, 4, 6]


def test_a_missing_file_is_the_user_s(folder, capsys) -> None:
    assert run(["tokens", "-m", folder, "nowhere.png"]) == FAULT
    assert capsys.readouterr().err.startswith("error: nowhere.png does not exist")
