"""Opening images: every source, every mode, every fault, always upright RGB on white or a documented error."""

from __future__ import annotations

import base64
import contextlib
import io
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms
from safetensors.torch import load_file

from cutaway.errors import InputError, LimitError
from cutaway.inputs.image.open import read_image
from cutaway.inputs.image.patches import prepare_image
from tests.inputs.media import NEW, OLD, PRE, noise, saved

ARRAY = noise(20, 30, 3)
IMAGE = Image.fromarray(ARRAY)
MODES = load_file(PRE / "images.safetensors")


def pixels(source, **options) -> np.ndarray:
    """uint8 [height width 3]."""
    read = read_image(source, **options)
    assert read.dtype == torch.uint8
    assert read.shape[0] == 3
    return read.permute(1, 2, 0).numpy()


def test_every_source_is_the_same_image(tmp_path) -> None:
    content = saved(IMAGE, "PNG")
    path = tmp_path / "a b.png"
    path.write_bytes(content)
    text = base64.b64encode(content).decode()
    sources = [
        path, str(path), f"file://{path}", content, bytearray(content), io.BytesIO(content), path.open("rb"),
        IMAGE, ARRAY, torch.from_numpy(ARRAY),
        ARRAY.transpose(2, 0, 1), torch.from_numpy(ARRAY).permute(2, 0, 1), ARRAY[::-1][::-1], text,
        f"data:image/png;base64,{text}", text[:40] + "\n" + text[40:], ARRAY.astype(np.int64), ARRAY / 255,
        torch.from_numpy(ARRAY / 255).float(), (ARRAY / 255).astype(np.float32), ARRAY.astype(np.uint16) * 257,
        torch.from_numpy(ARRAY).requires_grad_(False).to(torch.int32),
    ]  # fmt: skip
    for source in sources:
        assert np.array_equal(pixels(source), ARRAY), type(source)
        if isinstance(source, io.IOBase):
            source.close()
            with pytest.raises(InputError, match="open file that cannot be read"):
                pixels(source)
    with path.open(encoding="latin1") as opened, pytest.raises(InputError, match="opened with mode 'rb'"):
        pixels(opened)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGBA", "CMYK"])
def test_modes_as_the_reference_converts_them(mode) -> None:
    raw = MODES[f"mode.{mode}.raw"].numpy()
    image = (
        Image.fromarray(raw, "CMYK") if mode == "CMYK" else Image.fromarray(raw.astype(bool) if mode == "1" else raw)
    )
    assert image.mode == mode
    assert torch.equal(read_image(image), MODES[f"mode.{mode}.rgb"])


@pytest.mark.parametrize(
    "mode", ["L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "I", "F"]
)
def test_every_mode_opens(mode) -> None:
    grey = mode in ("L", "LA", "I", "F")
    start = IMAGE.convert("P").convert("RGB") if mode in ("P", "PA") else IMAGE.convert("L") if grey else IMAGE
    through = start.convert("P") if mode == "PA" else start.convert("RGBA") if mode == "RGBa" else start
    difference = pixels(through.convert(mode)).astype(int) - np.asarray(start.convert("RGB")).astype(int)
    # Colour models with 8 bits a part are not exact.
    assert abs(difference).max() <= {"YCbCr": 4, "HSV": 6}.get(mode, 0)


def test_lab_and_premultiplied_grey_open() -> None:
    flat = Image.new("RGB", (5, 4), (200, 100, 50))
    lab = ImageCms.profileToProfile(
        flat, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
    )
    assert abs(pixels(lab).astype(int) - [200, 100, 50]).max() <= 3
    half = Image.merge("LA", [Image.new("L", (2, 2), 100), Image.new("L", (2, 2), 128)])
    assert abs(pixels(half.convert("La")).astype(int) - pixels(half)).max() <= 1


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B", "I;16N"])
def test_sixteen_bits_are_scaled_not_clipped(mode) -> None:
    order = {"I;16": "<", "I;16L": "<", "I;16B": ">", "I;16N": "="}[mode]
    image = Image.frombytes(mode, (2, 2), struct.pack(f"{order}4H", 40000, 0, 65535, 257))
    assert pixels(image)[..., 0].tolist() == [[156, 0], [255, 1]]


def test_sixteen_bits_from_a_file() -> None:
    deep = Image.fromarray(np.full((4, 4), 40000, np.uint16))
    assert set(pixels(saved(deep, "PNG")).ravel()) == {156}
    assert set(pixels(saved(deep, "TIFF")).ravel()) == {156}
    assert set(pixels(Image.fromarray(np.full((4, 4), 40000, np.int32))).ravel()) == {156}
    assert set(pixels(Image.fromarray(np.full((4, 4), 0.5, np.float32))).ravel()) == {128}
    assert set(pixels(np.full((5, 6, 3), 40000, np.uint16)).ravel()) == {156}


@pytest.mark.parametrize(
    "array",
    [
        np.full((5, 6, 3), 256), np.full((5, 6, 3), -1), np.full((5, 6, 3), 1.5), np.full((5, 6, 3), -0.5),
        np.full((5, 6, 3), np.nan), np.full((5, 6, 3), np.inf), np.full((5, 6, 3), 200.0),
        np.full((5, 6, 3), 70000, np.uint32),
        np.full((5, 6, 3), 1j), np.full((5, 6, 3), "a"), np.full((5, 6, 3), None),
        torch.full((5, 6, 3), 2.0), torch.full((5, 6, 3), float("nan"), dtype=torch.bfloat16),
        torch.full((5, 6, 3), 1j), torch.zeros((5, 6, 3), device="meta"), torch.zeros((5, 6, 3)).to_sparse(),
        Image.fromarray(np.full((4, 4), 300.0, np.float32)), Image.fromarray(np.full((4, 4), np.nan, np.float32)),
        Image.fromarray(np.full((4, 4), -5, np.int32)), Image.fromarray(np.full((4, 4), 70000, np.int32)),
    ],
    ids=lambda a: f"{a.mode if isinstance(a, Image.Image) else a.dtype}",
)  # fmt: skip
def test_numbers_whose_range_is_a_guess(array) -> None:
    with pytest.raises(InputError, match=r"must lie in|of numbers"):
        read_image(array, name="images[3]")


def test_transparent_pixels_are_white() -> None:
    clear = Image.new("RGBA", (56, 56), (0, 0, 0, 0))
    rows = prepare_image(clear, OLD).rows.reshape(-1, 3, 392).mean((0, 2))
    torch.testing.assert_close(rows, torch.tensor([1.930, 2.075, 2.146]), atol=1e-3, rtol=0)
    red = prepare_image(Image.new("RGBA", (56, 56), (255, 0, 0, 128)), OLD).rows.reshape(-1, 3, 392).mean((0, 2))
    torch.testing.assert_close(red, torch.tensor([1.930, 0.154, 0.326]), atol=1e-3, rtol=0)


def test_transparency_in_every_place_it_is_kept() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putdata([0, 1])
    palette.info["transparency"] = 1
    assert pixels(palette).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    keyed = Image.new("RGB", (1, 1), (1, 2, 3))
    keyed.info["transparency"] = (1, 2, 3)
    assert pixels(keyed).tolist() == [[[255, 255, 255]]]
    grey = Image.fromarray(np.array([[7, 9]], np.uint8))
    assert pixels(saved(grey, "PNG", transparency=9))[0, :, 0].tolist() == [7, 255]
    deep = Image.fromarray(np.array([[0, 65535 - 257]], np.uint16))
    deep.info["transparency"] = 0
    assert pixels(deep)[0, :, 0].tolist() == [255, 254]
    assert pixels(Image.new("LA", (1, 1), (0, 0))).tolist() == [[[255, 255, 255]]]
    assert pixels(np.zeros((5, 2, 4), np.uint8)).min() == 255
    assert pixels(np.zeros((5, 5, 4), np.float32)).min() == 255


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["bytes", "pil", "path"])
def test_exif_rotation_is_always_applied(orientation, form, tmp_path) -> None:
    image = Image.fromarray(noise(56, 112, 3))
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(image, "PNG", exif=exif)
    (tmp_path / "p.png").write_bytes(content)
    source = {"bytes": content, "pil": Image.open(io.BytesIO(content)), "path": tmp_path / "p.png"}[form]
    a = np.asarray(image)
    upright = {
        1: a, 2: a[:, ::-1], 3: a[::-1, ::-1], 4: a[::-1], 5: a.transpose(1, 0, 2), 6: np.rot90(a, -1),
        7: np.rot90(a, 2).transpose(1, 0, 2), 8: np.rot90(a),
    }[orientation]  # fmt: skip
    assert np.array_equal(pixels(source), upright)
    patches = prepare_image(source, OLD)
    assert patches.grid == ((1, 8, 4) if orientation > 4 else (1, 4, 8))
    assert patches.original_size == upright.shape[:2]


def test_a_broken_orientation_changes_nothing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 77
    assert np.array_equal(pixels(saved(IMAGE, "PNG", exif=exif)), ARRAY)
    broken = IMAGE.copy()
    broken.info["exif"] = b"Exif\0\0MM\0"
    assert np.array_equal(pixels(broken), ARRAY)


def test_animations_give_the_frame_that_is_shown(tmp_path) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    path = tmp_path / "a.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    with Image.open(path) as image:
        assert pixels(image)[0, 0].tolist() == [255, 0, 0]
        image.seek(2)
        assert pixels(image)[0, 0].tolist() == [0, 0, 255]
        assert image.tell() == 2
    assert pixels(path)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("shape", [(3, 100, 3), (1, 50, 3), (4, 9, 4), (1, 1, 1), (3, 3, 3), (2, 7, 5), (10, 10, 10)])
def test_an_unclear_layout_is_an_error_with_a_way_out(shape) -> None:
    with pytest.raises(InputError, match=r"does not tell which.*layout='hwc' or layout='chw'"):
        read_image(np.zeros(shape, np.uint8))


def test_a_layout_that_is_said() -> None:
    strip = noise(3, 100, 3)
    patches = prepare_image(strip, OLD, layout="hwc")
    by_pil = prepare_image(Image.fromarray(strip), OLD)
    assert torch.equal(patches.rows, by_pil.rows)
    assert patches.grid == by_pil.grid == (1, 2, 24)
    assert np.array_equal(pixels(strip, layout="chw"), strip.transpose(1, 2, 0))
    with pytest.raises(InputError, match="must have 1, 3 or 4 channels"):
        read_image(noise(3, 100, 5), layout="hwc")
    with pytest.raises(InputError, match="must be 'hwc' or 'chw'"):
        read_image(strip, layout="whc")
    with pytest.raises(InputError, match="Leave it out"):
        read_image(IMAGE, layout="hwc")


@pytest.mark.parametrize(
    "array",
    [np.zeros((0, 5, 3), np.uint8), np.zeros((5, 0, 3), np.uint8), np.zeros((3, 0, 5), np.uint8), np.zeros((0, 0)),
     np.zeros(5), np.zeros(()), np.zeros((2, 4, 4, 3)), torch.zeros(0), Image.new("RGB", (0, 5)),
     Image.new("L", (5, 0))],
    ids=lambda a: f"{type(a).__name__} {getattr(a, 'shape', None) or a.size}",
)  # fmt: skip
def test_empty_and_misshapen(array) -> None:
    with pytest.raises(InputError, match=r"at least 1 x 1|must have axes|no clear layout"):
        read_image(array)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://example.com/a.png", "Nothing is fetched.*Download"),
        ("HTTP://example.com/a.png", "Nothing is fetched"),
        ("no such file.png", "no such file.png does not exist"),
        (Path("no such file.png"), "does not exist"),
        (".", "folder"),
        ("", "got the text ''"),
        ("a\0b", "got the text"),
        ("x" * 5000 + ".png", "cannot be opened|no file"),
        ("!" * 80, "must be the path of a file or base64"),
        ("data:image/png;base64,", "must have content"),
        ("data:image/png,abc", "must be base64"),
        ("data:image/png;base64,@@@@", "or base64"),
        (base64.b64encode(b"no image at all" * 9).decode(), "must be an image; known are PNG"),
        (b"", "must have content"),
        (b"no image at all", "must be an image; known are PNG"),
        (__file__, "must be an image; known are PNG"),
        (5, "must be a path.*got int"),
        (None, "got NoneType"),
        ([IMAGE], "got list"),
        ({"type": "image"}, "got dict"),
    ],
    ids=lambda value: "images" if isinstance(value, list) else str(value)[:20],
)
def test_what_is_no_image(source, message) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_image(source, name="images[1]")
    assert "images[1]" in str(caught.value)
    assert len(str(caught.value)) < 600 or len(str(source)) > 600


def test_a_file_under_a_wrong_name_opens_by_its_content(tmp_path) -> None:
    path = tmp_path / "really_a_jpeg.png"
    path.write_bytes(saved(IMAGE, "JPEG"))
    assert pixels(path).shape == (20, 30, 3)


def test_a_decompression_bomb_is_a_limit(monkeypatch) -> None:
    content = saved(Image.new("1", (400, 400)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    with pytest.raises(LimitError, match="MAX_IMAGE_PIXELS"):
        read_image(content)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_a_cut_off_file_is_an_error(kind) -> None:
    content = saved(Image.fromarray(noise(64, 64, 3)), kind)
    with pytest.raises(InputError, match=r"damaged|cut short|cannot be|must be an image; known are PNG"):
        read_image(content[: len(content) * 6 // 10])


FILES = {kind: saved(IMAGE, kind) for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "ICO", "TGA")}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=12),
    st.floats(0, 1),
)
def test_damage_never_surfaces_as_anything_else(kind, changes, keep) -> None:
    content = bytearray(FILES[kind])
    for position, value in changes:
        content[position % len(content)] = value
    content = bytes(content[: max(1, int(len(content) * keep))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own remarks on damaged tags
        with contextlib.suppress(InputError):
            assert pixels(content).dtype == np.uint8


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_never_surface_as_anything_else(content) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(InputError):
            read_image(content)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_random_text_never_surfaces_as_anything_else(text) -> None:
    with pytest.raises(InputError):
        read_image("no/such/folder/" + text)
    with pytest.raises(InputError):
        read_image("data:" + text)


def test_the_caller_keeps_its_image() -> None:
    array = ARRAY.copy()
    prepare_image(array, NEW)
    image = IMAGE.copy()
    prepare_image(image, NEW)
    assert np.array_equal(array, ARRAY)
    assert np.array_equal(np.asarray(image), ARRAY)
