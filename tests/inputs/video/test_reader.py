"""Videos in files: exact frames in every container, only what is needed decoded, faults as documented errors."""

from __future__ import annotations

import io
import random
import struct
import warnings
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from PIL import Image

from cutaway.errors import InputError, LimitError
from cutaway.inputs.video import reader as video_reader
from cutaway.inputs.video.patches import open_video, prepare_video
from tests.inputs.media import NEW_VIDEOS, OLD_VIDEOS, noise, noise_video, saved, write_video

CONTAINERS = [
    ("a.mp4", "libx264", "yuv420p", {}),
    ("b.mp4", "libx264", "yuv420p", {"bf": "3"}),
    ("c.mkv", "libx264", "yuv420p", {"bf": "3"}),
    ("d.avi", "mpeg4", "yuv420p", {}),
    ("e.avi", "libx264", "yuv420p", {"bf": "3"}),
    ("f.webm", "libvpx-vp9", "yuv420p", {}),
    ("g.ts", "libx264", "yuv420p", {}),
    ("h.mov", "mjpeg", "yuvj420p", {}),
    ("i.h264", "libx264", "yuv420p", {}),
    ("j.mpg", "mpeg2video", "yuv420p", {}),
    ("k.mp4", "mpeg4", "yuv420p", {}),
]


@pytest.fixture
def movie(tmp_path):
    """A 60-frame video of two seconds, and its frames as they decode."""
    return tmp_path / "video.mp4", write_video(tmp_path / "video.mp4")


def same(video, frames) -> bool:
    read = [frame.permute(1, 2, 0).numpy() for frame in video.frames()]
    assert len(read) == len(video.indices)
    return all(np.array_equal(frame, frames[number]) for frame, number in zip(read, video.indices, strict=True))


@pytest.mark.parametrize(("file", "codec", "form", "options"), CONTAINERS, ids=[row[0] for row in CONTAINERS])
def test_sought_frames_are_those_of_a_full_decode(file, codec, form, options, tmp_path) -> None:
    frames = write_video(tmp_path / file, codec, pixels=form, options=options)
    assert len(frames) == 60
    for arguments in ({}, {"num_frames": 40}, {"num_frames": 1}, {"do_sample_frames": False}):
        video = open_video(tmp_path / file, NEW_VIDEOS, **arguments)
        assert video.total_frames == 60
        assert video.size == (64, 96)
        assert same(video, frames)
    if not file.endswith("h264"):  # a bare stream has no rate
        assert video.source_fps == 30


def test_path_text_and_bytes(movie) -> None:
    path, frames = movie
    for source in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), f"file://{path}"):
        assert same(open_video(source, NEW_VIDEOS), frames)


def test_a_file_is_the_array_with_its_metadata(movie) -> None:
    path, frames = movie
    for settings in (NEW_VIDEOS, OLD_VIDEOS):
        ours = prepare_video(path, settings)
        array = prepare_video(np.stack(frames), settings, metadata={"fps": 30, "total_num_frames": 60})
        assert torch.equal(ours.rows, array.rows)
        assert (ours.grid, ours.seconds, ours.seconds_per_grid) == (array.grid, array.seconds, array.seconds_per_grid)


def test_only_the_frames_on_the_way_are_decoded(tmp_path, monkeypatch) -> None:
    write_video(tmp_path / "a.mp4", frames=240, gop=8)
    video = open_video(tmp_path / "a.mp4", NEW_VIDEOS, num_frames=4)
    decoded = []

    class Counting(video_reader._Reader):
        def __enter__(self):
            reader = super().__enter__()
            container = reader.container

            class Container:
                seek, close = container.seek, container.close

                def decode(self, stream):
                    for frame in container.decode(stream):
                        decoded.append(frame.pts)
                        yield frame

            reader.container = Container()
            return reader

    monkeypatch.setattr(video_reader, "_Reader", Counting)
    assert len(list(video.frames())) == 4
    assert len(decoded) <= 4 * 9


def test_variable_rates_count_frames(tmp_path) -> None:
    times = [0, 40, 80, 500, 540, 580, 2000, 2040, 2080, 4000]
    frames = write_video(tmp_path / "v.mp4", frames=10, times=times, options={"bf": "0"})
    video = open_video(tmp_path / "v.mp4", NEW_VIDEOS, num_frames=5)
    assert video.total_frames == 10
    assert video.indices == (0, 2, 4, 7, 9)
    assert same(video, frames)


def test_a_broken_rate_arrives_unrounded(tmp_path) -> None:
    write_video(tmp_path / "n.mp4", fps=Fraction(30000, 1001), frames=30)
    assert open_video(tmp_path / "n.mp4", NEW_VIDEOS).source_fps == 30000 / 1001


def test_metadata_overrides_the_rate_of_a_file(movie) -> None:
    path, _ = movie
    assert open_video(path, NEW_VIDEOS, metadata={"fps": 10}).source_fps == 10
    assert len(open_video(path, NEW_VIDEOS, metadata={"fps": 10}).indices) == 12


@pytest.mark.parametrize(
    ("degrees", "matrix"),
    [
        (90, (0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)),
        (180, (-65536, 0, 0, 0, -65536, 0, 0, 0, 1 << 30)),
        (270, (0, -65536, 0, 65536, 0, 0, 0, 0, 1 << 30)),
    ],
)
def test_rotation_is_honoured(degrees, matrix, movie) -> None:
    path, frames = movie
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 44  # the track header's matrix
    content[start : start + 36] = struct.pack(">9i", *matrix)
    video = open_video(bytes(content), NEW_VIDEOS)
    upright = [np.rot90(frame, -degrees // 90) for frame in frames]
    assert video.size == upright[0].shape[:2]
    assert same(video, upright)
    assert prepare_video(bytes(content), NEW_VIDEOS).original_size == video.size


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_still_image_is_a_video_of_one_frame(kind, tmp_path) -> None:
    path = tmp_path / f"still.{kind.lower()}"
    path.write_bytes(saved(Image.fromarray(noise(64, 96, 3)), kind))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for settings in (NEW_VIDEOS, OLD_VIDEOS):
            patches = prepare_video(path, settings)
            assert patches.grid[0] == 1
            assert patches.indices == (0,)
            assert patches.original_size == (64, 96)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_animations_are_videos(kind) -> None:
    frames = [Image.new("RGB", (32, 40), (20 * i, 250 - 20 * i, 0)) for i in range(12)]
    content = saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=250, lossless=True)
    video = open_video(content, NEW_VIDEOS)
    assert (video.total_frames, video.source_fps, video.size) == (12, 4.0, (40, 32))
    assert video.indices == (0, 2, 4, 7, 9, 11)
    for number, frame in zip(video.indices, video.frames(), strict=True):
        assert abs(frame[:, 0, 0].int() - torch.tensor([20 * number, 250 - 20 * number, 0])).max() <= 2


def test_an_opened_animation_stays_where_it_was() -> None:
    frames = [Image.new("L", (8, 8), 60 * i) for i in range(4)]
    content = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with Image.open(io.BytesIO(content)) as image:
        image.seek(2)
        assert [frame[0, 0, 0].item() for frame in open_video(image, NEW_VIDEOS).frames()] == [0, 60, 120, 180]
        assert image.tell() == 2


def sound(path) -> None:
    with av.open(str(path), "w") as file:
        stream = file.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())


def test_files_without_a_video(tmp_path) -> None:
    sound(tmp_path / "s.wav")
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "words.txt").write_text("no video\n" * 99)
    (tmp_path / "noise.mp4").write_bytes(random.Random(0).randbytes(4000))
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXTINF:9,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n")
    for name, message in [
        ("s.wav", "no video that can be read"), ("empty.mp4", "no video that can be read"), ("words.txt", "no"),
        ("noise.mp4", "no video that can be read"), ("list.m3u8", "no video that can be read"),
        ("gone.mp4", "does not exist"), (".", "is a folder"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=message) as caught:
            open_video(tmp_path / name, NEW_VIDEOS, name="videos[0]")
        assert "videos[0]" in str(caught.value)
    for source in ("https://example.com/a.mp4", "rtmp://x/y", "concat:a|b", b"", b"nothing", "data:video/mp4;base64,"):
        with pytest.raises(InputError):
            open_video(source, NEW_VIDEOS)


def test_a_video_that_is_cut_short(tmp_path) -> None:
    write_video(tmp_path / "a.mp4", container={"movflags": "faststart"})
    content = (tmp_path / "a.mp4").read_bytes()
    with pytest.raises(InputError, match=r"cut short: it announces 60 frames"):
        open_video(content[: len(content) * 8 // 10], NEW_VIDEOS)
    write_video(tmp_path / "b.mp4")
    content = (tmp_path / "b.mp4").read_bytes()
    with pytest.raises(InputError, match="damaged"):  # the index was at the end
        open_video(content[: len(content) // 2], NEW_VIDEOS)


def test_a_cut_off_stream_is_the_part_that_is_there(tmp_path) -> None:
    write_video(tmp_path / "a.ts")
    content = (tmp_path / "a.ts").read_bytes()
    video = open_video(content[: len(content) // 2], NEW_VIDEOS)
    assert 10 < video.total_frames < 60
    assert len(list(video.frames())) == len(video.indices)


@pytest.mark.parametrize("file", ["a.mp4", "c.mkv", "d.avi", "g.ts"])
def test_damage_never_surfaces_as_anything_else(file, tmp_path) -> None:
    codec, form, options = next(row[1:] for row in CONTAINERS if row[0] == file)
    write_video(tmp_path / file, codec, frames=16, pixels=form, options=options)
    whole, chance = (tmp_path / file).read_bytes(), random.Random(1)
    outcomes = set()
    for attempt in range(40):
        content = bytearray(whole)
        for _ in range(attempt % 8):
            content[chance.randrange(len(content))] = chance.randrange(256)
        content = bytes(content[: chance.randrange(1, len(content))] if attempt % 3 == 0 else content)
        try:
            video = open_video(content, NEW_VIDEOS)
            outcomes.add(len(list(video.frames())) == len(video.indices))
        except InputError:
            outcomes.add("refused")
    assert outcomes <= {True, "refused"}


def test_too_many_frames_asked_for(movie) -> None:
    with pytest.raises(LimitError, match="at most 768"):
        open_video(movie[0], NEW_VIDEOS, num_frames=10**6)


def test_files_close(movie) -> None:
    """Also when the frames are not read to the end."""
    frames = open_video(movie[0], NEW_VIDEOS).frames()
    next(frames)
    frames.close()
    movie[0].unlink()
    with pytest.raises(InputError, match="does not exist"):
        open_video(movie[0], NEW_VIDEOS)


def test_the_video_of_an_array_is_not_copied() -> None:
    frames = noise_video(4)
    prepare_video(frames, NEW_VIDEOS, metadata={"fps": 2})
    assert np.array_equal(frames, noise_video(4))


def test_frames_are_decoded_ahead_up_to_a_bound(monkeypatch) -> None:
    made: list[int] = []

    def frames():
        for n in range(7):
            made.append(n)
            yield torch.full((3, 2, 2), n, dtype=torch.uint8)

    monkeypatch.setattr(video_reader, "AHEAD", 36)  # three frames of twelve bytes
    ahead = video_reader._ahead(frames())
    assert int(next(ahead)[0, 0, 0]) == 0
    assert made == [0, 1, 2]
    assert [int(frame[0, 0, 0]) for frame in ahead] == [1, 2, 3, 4, 5, 6]
    monkeypatch.setattr(video_reader, "AHEAD", 1)
    made.clear()
    next(video_reader._ahead(frames()))
    assert made == [0]
