"""The generated pages of docs/ say what the code says."""

from __future__ import annotations

import pytest

from docs.generate import HERE, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name) -> None:
    assert (HERE / name).read_text(encoding="utf-8") == PAGES[name](), f"docs/{name} is out of date: run `make docs`"
