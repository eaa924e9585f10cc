"""The words of docs/glossary.md: what the code base calls things, and which words it does not use for them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.repo.source import ROOT, python_files, shown, tracked

ANYWHERE = {
    "picture": "image",
    "pictures": "images",
    "clips": "videos",
    "film": "video",
    "films": "videos",
    "lane": "ForwardGreenlet",
    "lanes": "ForwardGreenlet",
    "spots": "positions",
    "handed": "returned, passed",
    "watcher": "observer",
    "watchers": "observers",
    "watching": "observing",
    "knock-out": "knockout",
    "knock-outs": "knockouts",
}
"""Words that are refused in identifiers, docstrings, comments, messages, help texts and docs, with what to say."""

IN_IDENTIFIERS = {
    "clip": "video",
    "against": "foil",
    "subject": "model",
    "line_of": "family",
    "lines_of": "families",
    "found": "a noun that says what it is",
    "given": "options, arguments",
    "chosen": "selection",
    "asked": "request, question",
    "held": "a noun that says what it is",
    "told": "a noun that says what it is",
    "handed": "a noun that says what it is",
    "spoken": "answer, words",
    "said": "answer, words",
    "taken": "a noun that says what it is",
    "places": "positions",
    "place": "position",
    "spot": "position",
    "stand": "PausePoint",
    "book": "AddressIndex",
}
"""Whole identifiers (functions, classes, parameters, variables, attributes) that are refused, with what to say."""

ALLOWED = {
    r"np\.clip\b|torch\.clip\b|\.clip\(|clip_grad_norm_|CLIP": "functions and models of other libraries",
    r"picture-in-picture|MotionPicture": "names of formats",
}
"""What the words may stand in, and why."""

IDENTIFIERS_OF_OTHERS = {"clip", "place", "given"}
"""Attributes and keywords of other libraries: `tensor.clip`, `hypothesis.given`; refused only as names of our own."""

VOCABULARY = {
    "training/nano/files.py",
    "training/nano/questions.py",
    "tests/conversation.py",
    "tests/inputs/text/test_chat_template.py",
}
"""Files with the words that the bundled model reads, or with the "Picture 1:" of Qwen's templates: there it is data."""

SOURCES = python_files("src", "tests", "examples", "benchmarks", "training", "docs")
PAGES = [f for f in tracked() if f.suffix == ".md" and f.exists()]


def refused(text: str) -> Iterator[str]:
    """Each refused word of a text, with what to say."""
    for pattern in ALLOWED:
        text = re.sub(pattern, "", text)
    for word in re.findall(r"[A-Za-z]+(?:-[a-z]+)?", text):
        if word.lower() in ANYWHERE:
            yield f"{word!r} (say {ANYWHERE[word.lower()]})"


def own_names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a file defines: functions, classes, parameters, variables, attributes that it assigns."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Strings and comments of a file, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield token.start[0], token.string


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_code_uses_the_words_of_the_glossary(path) -> None:
    if path.name == "test_words.py":
        return
    source = path.read_text(encoding="utf-8")
    texts = [] if shown(path) in VOCABULARY else prose(source)
    faults = [f"{line}: {word}" for line, text in texts for word in refused(text)]
    for line, name in own_names(ast.parse(source)):
        parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
        if name.strip("_").lower() in IN_IDENTIFIERS:
            faults.append(f"{line}: name {name!r} (say {IN_IDENTIFIERS[name.strip('_').lower()]})")
        faults += [f"{line}: name {name!r} (say {ANYWHERE[p.lower()]})" for p in parts if p.lower() in ANYWHERE]
    assert not faults, f"{shown(path)} uses words that docs/glossary.md replaces:\n" + "\n".join(sorted(set(faults)))


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_pages_use_the_words_of_the_glossary(path) -> None:
    if path.name == "glossary.md":
        return
    faults = [
        f"{number}: {word}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for word in refused(line)
    ]
    assert not faults, f"{shown(path)} uses words that docs/glossary.md replaces:\n" + "\n".join(faults)


def test_the_glossary_lists_what_is_refused() -> None:
    """Every word that this file refuses for a term of the glossary stands in the glossary's last column."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    columns = " ".join(row.rsplit("|", 2)[-2] for row in page.splitlines() if row.startswith("|"))
    for word in ("picture", "clip", "film", "spots", "places", "against", "line", "watcher"):
        assert re.search(rf"\b{word}\b", columns), f"docs/glossary.md does not name {word!r} among the words not used"


def test_a_refused_word_is_found() -> None:
    assert list(refused("two Pictures")) == ["'Pictures' (say images)"]
    assert not list(refused("np.clip(x) and CLIP"))
    assert list(own_names(ast.parse("def f(found): pass"))) == [(1, "f"), (1, "found")]
