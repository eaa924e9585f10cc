"""Images and videos are told apart by content before name."""

from __future__ import annotations

import pytest
from PIL import Image

from cutaway.errors import InputError
from cutaway.inputs.media import kind_of


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_images_whatever_they_are_called(form, red, tmp_path) -> None:
    path = tmp_path / "something.mp4"
    red.save(path, format=form)
    assert kind_of(path) == "image"


@pytest.mark.parametrize("form", ["GIF", "WEBP"])
def test_an_animation_is_a_video(form, red, tmp_path) -> None:
    path = tmp_path / "something.png"
    red.save(path, format=form, save_all=True, append_images=[Image.new("RGB", red.size, "blue")], duration=100)
    assert kind_of(path) == "video"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\0\0\0\x18ftypmp42", "video"),
        (b"\0\0\0\x18ftypavif", "image"),
        (b"\x1a\x45\xdf\xa3....", "video"),
        (b"RIFF\0\0\0\0AVI LIST", "video"),
    ],
)
def test_containers(head, kind, tmp_path) -> None:
    path = tmp_path / "nameless"
    path.write_bytes(head)
    assert kind_of(path) == kind


@pytest.mark.parametrize(("name", "kind"), [("x.ts", "video"), ("x.PPM", "image"), ("x.MP4", "video")])
def test_the_name_decides_where_the_content_does_not(name, kind, tmp_path) -> None:
    (tmp_path / name).write_bytes(b"G@\0\x10\0\0")
    assert kind_of(tmp_path / name) == kind


def test_a_damaged_animation_is_left_to_the_image_reader(tmp_path) -> None:
    (tmp_path / "x").write_bytes(b"GIF89a\x01")
    assert kind_of(tmp_path / "x") == "image"


def test_what_cannot_be_told(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match=r"must be an image or a video .* known videos"):
        kind_of(tmp_path / "notes.txt")
    with pytest.raises(InputError, match="does not exist"):
        kind_of(tmp_path / "none.png")
    with pytest.raises(InputError, match="is a folder"):
        kind_of(tmp_path)
