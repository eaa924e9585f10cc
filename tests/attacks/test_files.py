"""Paths and bytes that would hang, run a program, open other files or fill the memory: refused before they do."""

from __future__ import annotations

import io
import os
import resource
import socket
import struct
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from cutaway.errors import InputError, LimitError
from cutaway.inputs.image.open import read_image
from cutaway.inputs.media import kind_of
from cutaway.inputs.video.patches import open_video, prepare_video
from tests.inputs.media import NEW_VIDEOS, noise, saved, write_video


@contextmanager
def bounded(seconds: float = 3, megabytes: int = 300) -> Iterator[None]:
    """Fail when what is inside takes longer, or raises the peak memory by more."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    yield
    assert time.perf_counter() - started < seconds
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < megabytes


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    return tmp_path / "pipe.png"


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket may be 107 bytes long
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.png")
        yield tmp_path / "socket.png"


OPENERS = [read_image, lambda path: open_video(path, NEW_VIDEOS), kind_of]


@pytest.mark.parametrize("opened", OPENERS, ids=["image", "video", "kind"])
@pytest.mark.parametrize(
    "path", ["/dev/zero", "/dev/random", "/dev/stdin", "/proc/kmsg", "/proc/self/mem", "/sys/kernel", "/"]
)
def test_the_systems_own_files_are_not_opened(path, opened) -> None:
    with bounded(), pytest.raises(InputError, match=r"Only regular files are read|does not exist|cannot be opened"):
        opened(path)


@pytest.mark.parametrize("opened", OPENERS, ids=["image", "video", "kind"])
def test_pipes_sockets_and_links_to_them_are_not_opened(pipe, endpoint, tmp_path, opened) -> None:
    (tmp_path / "link.png").symlink_to(pipe)
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    for path in (pipe, endpoint, tmp_path / "link.png"):
        with bounded(), pytest.raises(InputError, match="Only regular files are read"):
            opened(path)
    with bounded(), pytest.raises(InputError, match=r"loop.png"):
        opened(tmp_path / "loop.png")


def test_a_link_to_an_image_is_the_image(tmp_path) -> None:
    (tmp_path / "a.png").write_bytes(saved(Image.fromarray(noise(8, 9, 3)), "PNG"))
    (tmp_path / "b.png").symlink_to(tmp_path / "a.png")
    assert read_image(tmp_path / "b.png").shape == (3, 8, 9)


def test_an_open_device_is_not_read() -> None:
    with open("/dev/zero", "rb") as file, bounded(), pytest.raises(InputError, match="Devices are not read"):
        read_image(file)


def test_frames_and_messages_name_no_device(pipe) -> None:
    with bounded(), pytest.raises(InputError, match=r"frame 0 of the video: Only regular"):
        open_video([pipe, pipe], NEW_VIDEOS)


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n%%EOF\n",
        b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 32, 60) + b"\0" * 20 + b"%!PS-Adobe-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"%PDF-1.4\n%%EOF\n",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        b"\xd7\xcd\xc6\x9a" + b"\0" * 60,
    ],
    ids=["eps", "dos-eps", "pdf", "svg", "wmf"],
)
@pytest.mark.parametrize("name", ["a.eps", "a.png", "a.jpg"])
def test_no_program_is_started_for_an_image(content, name, tmp_path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(subprocess, "check_call", refuse)
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", refuse)
    (tmp_path / name).write_bytes(content)
    for opened in (read_image, lambda source: open_video(source, NEW_VIDEOS)):
        for source in (tmp_path / name, content, io.BytesIO(content)):
            with bounded(), pytest.raises(InputError):
                opened(source)


PLAYLISTS = {
    "m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{file}\n#EXT-X-ENDLIST\n",
    "ffconcat": "ffconcat version 1.0\nfile '{file}'\n",
    "concat": "file '{file}'\n",
    "mpd": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet '
    'mimeType="video/mp4"><Representation id="0" bandwidth="9"><BaseURL>{file}</BaseURL></Representation>'
    "</AdaptationSet></Period></MPD>",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 96\na=x\n",
    "pls": "[playlist]\nFile1={file}\n",
    "smil": "<smil><body><video src='{file}'/></body></smil>",
    "asx": "<asx version='3.0'><entry><ref href='{file}'/></entry></asx>",
    "txt": "{file}\n",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_playlist_opens_no_other_file(kind, tmp_path) -> None:
    write_video(tmp_path / "secret.ts", "mpeg2video", frames=4)
    content = PLAYLISTS[kind].format(file=tmp_path / "secret.ts")
    for name in (f"list.{kind}", "list.mp4", "list.ts", "list.png"):
        (tmp_path / name).write_text(content)
        for source in (tmp_path / name, content.encode()):
            with bounded(), pytest.raises(InputError):
                open_video(source, NEW_VIDEOS)


@pytest.mark.parametrize(
    "prefix",
    [
        "concat:",
        "subfile,,start,0,end,0,,:",
        "crypto:",
        "data:",
        "http:",
        "rtsp://",
        "pipe:0",
        "cache:",
        "async:",
        "tcp://",
        "unix:",
        "fd:0",
    ],
)
def test_no_protocol_is_followed(prefix, tmp_path) -> None:
    write_video(tmp_path / "a.mp4", frames=4)
    for opened in (read_image, lambda source: open_video(source, NEW_VIDEOS)):
        with bounded(), pytest.raises(InputError):
            opened(f"{prefix}{tmp_path / 'a.mp4'}")


def png(width: int, height: int) -> bytes:
    """A black PNG of any size in a few bytes a row."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    packer, row = zlib.compressobj(9), bytes(width // 8 + 2)
    data = b"".join(packer.compress(row) for _ in range(min(height, 2000))) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 13_000, 30_000, 2**31 - 1])
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(side) -> None:
    content = png(min(side, 30_000), 1) if side < 2**20 else b""
    content = (content or png(8, 1))[:16] + struct.pack(">II", side, side) + (content or png(8, 1))[24:]
    start = content.index(b"IHDR")
    content = content[: start + 17] + struct.pack(">I", zlib.crc32(content[start : start + 17])) + content[start + 21 :]
    for opened in (read_image, lambda source: open_video(source, NEW_VIDEOS)):
        with bounded(1, 50), pytest.raises(LimitError, match=r"more pixels than are read.*MAX_IMAGE_PIXELS"):
            opened(content)


def test_a_large_photograph_is_read() -> None:
    with bounded(6, 700):
        assert read_image(saved(Image.new("RGB", (6000, 4000), "red"), "JPEG")).shape == (3, 4000, 6000)


def test_an_animation_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    frames = [Image.new("L", (8, 8), level) for level in range(40)]
    content = bytearray(saved(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=40))
    struct.pack_into("<HH", content, 6, 9000, 9000)  # the canvas
    with bounded(2, 200), pytest.raises(LimitError, match="An animation may have"):
        open_video(bytes(content), NEW_VIDEOS)


def test_an_ordinary_animation_is_not_limited() -> None:
    frames = [Image.fromarray(np.full((480, 640), 9 * i, np.uint8)) for i in range(20)]
    content = saved(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=100)
    assert prepare_video(content, NEW_VIDEOS).total_frames == 20


def test_a_list_that_holds_itself_is_no_image_and_no_video(nano) -> None:
    endless: list = []
    endless.append(endless)
    prompt = nano.prompt("?", images=1)
    for keys in ({"images": endless}, {"images": [endless]}, {"videos": endless}, {"videos": [endless, endless]}):
        with bounded(), pytest.raises(InputError):
            nano.prepare(prompt, **keys)
