"""Edit lists, display matrices and pairs with metadata: what is read is what a player shows and a caller means."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch

from cutaway.errors import InputError
from cutaway.inputs.media import arrange_videos
from cutaway.inputs.video.patches import VideoBatch, open_video, prepare_video
from tests.inputs.media import NEW_VIDEOS, noise_video, write_video


def with_edits(content: bytes, edits: list[tuple[float, float]]) -> bytes:
    """An MP4 file, its index at the end, whose edit list shows (start, length) in seconds; a start of -1 is a pause."""
    at = content.index(b"elst") - 4
    size = struct.unpack(">I", content[at : at + 4])[0]
    second = struct.unpack(">I", content[content.index(b"mvhd") + 16 :][:4])[0]
    media = struct.unpack(">I", content[content.index(b"mdhd") + 16 :][:4])[0]
    first = struct.unpack(">i", content[at + 20 : at + 24])[0]  # time of the first frame that is shown
    entries = b"".join(
        struct.pack(">IiI", round(length * second), -1 if start < 0 else first + round(start * media), 1 << 16)
        for start, length in edits
    )
    new = struct.pack(">I4sII", 16 + len(entries), b"elst", 0, len(edits)) + entries
    data = bytearray(content[:at] + new + content[at + size :])
    for name in (b"moov", b"trak", b"edts"):
        head = data.index(name) - 4
        data[head : head + 4] = struct.pack(">I", struct.unpack(">I", data[head : head + 4])[0] + len(new) - size)
    return bytes(data)


EDITS = {
    "all": [(0, 2)],
    "first half": [(0, 1)],
    "a hidden group at the start": [(1, 1)],
    "from inside a group": [(0.9, 1)],
    "a group in the middle hidden": [(0, 0.4), (1.2, 0.8)],
    "a pause first": [(-1, 0.5), (0, 2)],
    "one group": [(0.8, 0.4)],
    "the last frames": [(1.9, 0.1)],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_an_edit_list_shows_what_a_player_shows(edits, tmp_path) -> None:
    write_video(tmp_path / "a.mp4")
    path = tmp_path / "edited.mp4"
    path.write_bytes(with_edits((tmp_path / "a.mp4").read_bytes(), edits))
    with av.open(str(path)) as file:
        shown = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    video = open_video(path, NEW_VIDEOS, do_sample_frames=False)
    assert video.total_frames == len(shown)
    read = [frame.permute(1, 2, 0).numpy() for frame in video.frames()]
    assert all(np.array_equal(one, other) for one, other in zip(read, shown, strict=True))


ONE = 65536
MATRICES = {
    "mirrored left to right": ((-ONE, 0, 0, ONE), lambda a: a[:, ::-1]),
    "mirrored top to bottom": ((ONE, 0, 0, -ONE), lambda a: a[::-1]),
    "transposed": ((0, ONE, ONE, 0), lambda a: a.swapaxes(0, 1)),
    "transposed over the other diagonal": ((0, -ONE, -ONE, 0), lambda a: a.swapaxes(0, 1)[::-1, ::-1]),
    "turned right": ((0, ONE, -ONE, 0), lambda a: np.rot90(a, -1)),
    "turned left": ((0, -ONE, ONE, 0), lambda a: np.rot90(a, 1)),
    "upside down": ((-ONE, 0, 0, -ONE), lambda a: np.rot90(a, 2)),
    "enlarged": ((2 * ONE, 0, 0, 2 * ONE), lambda a: a),
    "nothing left": ((0, 0, 0, 0), lambda a: a),
}


@pytest.mark.parametrize(("matrix", "shown"), MATRICES.values(), ids=MATRICES)
def test_a_display_matrix_is_applied(matrix, shown, tmp_path) -> None:
    frames = write_video(tmp_path / "a.mp4", frames=8)
    content = bytearray((tmp_path / "a.mp4").read_bytes())
    start, (a, b, c, d) = content.index(b"tkhd") + 44, matrix
    content[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    video = open_video(bytes(content), NEW_VIDEOS, do_sample_frames=False)
    for read, stored in zip(video.frames(), frames, strict=True):
        assert np.array_equal(read.permute(1, 2, 0).numpy(), shown(stored))


def test_a_pair_of_frames_and_metadata_is_one_video() -> None:
    frames, described = noise_video(8), {"fps": 4.0, "total_num_frames": 8}
    expected = prepare_video(frames, NEW_VIDEOS, metadata=described)
    as_object = SimpleNamespace(fps=4.0, total_num_frames=8, frames_indices=None)
    for pair in ((frames, described), [frames, described], (list(frames), described), (frames, as_object)):
        for videos in (pair, [pair], [[pair]]):
            sources, _ = arrange_videos(videos)
            assert len(sources) == 1
            (patches,) = VideoBatch(sources, NEW_VIDEOS, {}).patches()
            assert torch.equal(patches.rows, expected.rows)
            assert patches.seconds == expected.seconds
    assert len(arrange_videos([(frames, described), (frames, described)])[0]) == 2
    with pytest.raises(InputError, match="Metadata is given once"):
        open_video((frames, described), NEW_VIDEOS, metadata=described)


@pytest.mark.parametrize("suffix", ["png", "ppm", "jp2", "avif", "ico", "webp", "bmp", "tif"])
def test_a_list_of_image_files_is_one_video(suffix) -> None:
    frames = [f"{number}.{suffix}" for number in range(4)]
    assert arrange_videos(frames) == ([frames], None)
    assert arrange_videos([frames, frames]) == ([frames, frames], None)
