"""Every code block of the documents runs, every claim in it holds, and every example runs."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.repo import pages
from tests.repo.source import ROOT, python_files, shown, tracked

DOCUMENTS = [f for f in tracked() if f.suffix == ".md" and (f.parent == ROOT or (ROOT / "docs") in f.parents)]
WITH_CODE = [f for f in DOCUMENTS if pages.blocks(f)]
EXAMPLES = python_files("examples")
FROM_NOTHING = ("quickstart", "how-a-run-works", "generation", "chat")
"""Pages that make their own model and images, as a newcomer needs; the others use the quick start's."""


@pytest.mark.parametrize("page", WITH_CODE, ids=shown)
def test_page(page, nano, red, wide, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    red.save("red.png"), wide.save("wide.png")
    prompt = nano.prompt("What color is the square?", images=1)
    pages.run(page, {"__name__": "__page__", "model": nano, "prompt": prompt, "red": red, "wide": wide})


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in FROM_NOTHING)])
def test_a_newcomers_page_runs_in_an_empty_folder_with_nothing_prepared(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pages.run(ROOT / page, {"__name__": "__page__"})


@pytest.mark.parametrize("page", WITH_CODE, ids=shown)
def test_a_block_that_is_not_run_says_why(page) -> None:
    for block in pages.blocks(page):
        if block.mark:
            assert block.mark.startswith("no-run: "), f"{shown(page)}:{block.line}: unknown mark {block.mark!r}"
            assert len(block.mark) > len("no-run: ") + 10, f"{shown(page)}:{block.line}: say why it is not run"


@pytest.mark.parametrize("example", EXAMPLES, ids=shown)
def test_example(example, tmp_path, monkeypatch, capsys) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 40, f"{shown(example)} has more than 40 lines"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip(), f"{shown(example)} prints nothing"


def test_a_wrong_claim_is_seen(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 2\nx * 2  # 4\n```\n\n```python no-run: never\n1 / 0\n```\n")
    assert pages.run(page, {}) == 1
    page.write_text("```python\n1 + 1  # 3\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:2: the page says 3, it is 2"):
        pages.run(page, {})
