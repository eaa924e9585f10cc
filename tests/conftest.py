"""What tests share: the bundled model, two images, the reference checkpoints, and one thread for each process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw

ORACLE = Path(__file__).parent / "data" / "oracle"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Workers run beside each other; more threads would only slow them down."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test starts from the same random numbers, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def nano():
    """The bundled model, loaded once; a test must not change its weights."""
    import cutaway

    return cutaway.load("nano")


@pytest.fixture(scope="session")
def oracle() -> Path:
    """The folder of reference checkpoints and values: `ckpt/LINE/` and `out/LINE/`."""
    return ORACLE


@pytest.fixture
def red() -> Image.Image:
    """A red square on white, 64 x 64."""
    image = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(image).rectangle((16, 16, 47, 47), fill="red")
    return image


@pytest.fixture
def wide() -> Image.Image:
    """A blue disc and a green square on white, 96 x 64."""
    image = Image.new("RGB", (96, 64), "white")
    draw = ImageDraw.Draw(image)
    draw.ellipse((6, 16, 38, 48), fill="blue")
    draw.rectangle((54, 16, 86, 48), fill="green")
    return image
