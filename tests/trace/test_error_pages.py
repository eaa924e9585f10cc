"""Every error of reads and edits has a page, which the index lists; what the pages show is run elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutaway import errors

PAGES = Path(__file__).parents[2] / "docs" / "errors"
KINDS = [kind for kind in errors.TraceError.__subclasses__() if kind.__module__ == "cutaway.errors"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_has_a_page(kind):
    page = next(p for p in PAGES.glob("*.md") if p.read_text(encoding="utf-8").startswith(f"# {kind.__name__}\n"))
    text = page.read_text(encoding="utf-8")
    assert f"import {kind.__name__}" in text
    assert "**What to do.**" in text
    assert f"[{kind.__name__}]({page.name})" in (PAGES / "README.md").read_text(encoding="utf-8")


def test_messages_name_pages_that_are_there():
    source = (Path(errors.__file__).parent / "trace" / "pause.py").read_text(encoding="utf-8")
    named = {part.split(".md")[0] for part in source.split("docs/errors/")[1:]}
    assert named == {"out-of-order", "not-reached"}
    assert all((PAGES / f"{name}.md").is_file() for name in named)
