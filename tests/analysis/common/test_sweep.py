"""`ResultStore` and `Sweep`: kept, resumed after a kill, refused for other settings, filled into arrays."""

from __future__ import annotations

import json
from multiprocessing import get_context

import numpy as np
import pytest

from cutaway.analysis.common import metrics
from cutaway.analysis.common.sweep import ResultStore, Sweep
from cutaway.errors import InputError
from tests.analysis.models import small

SETTINGS = {"model": "nano", "layers": [0, 1]}


def test_results_survive_and_are_read_back(tmp_path) -> None:
    path = tmp_path / "cells.jsonl"
    with ResultStore(path, SETTINGS) as store:
        store.update({"a": 0.1})
        store.update({"b": [1, 2]})
    with ResultStore(path, SETTINGS) as again:
        assert (again["a"], again["b"], len(again), "c" in again) == (0.1, [1, 2], 2, False)
        again.update({"c": None})
    with ResultStore(path, SETTINGS) as third:
        assert "c" in third


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_torn_line_is_dropped(tmp_path, cut) -> None:
    path = tmp_path / "cells.jsonl"
    with ResultStore(path, SETTINGS) as store:
        store.update({"a": 1.0, "b": 2.0})
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with ResultStore(path, SETTINGS) as again:
        assert ("a" in again, "b" in again) == (True, False)
        again.update({"b": 2.0})
    assert path.read_bytes() == whole


@pytest.mark.parametrize("torn", [b"\0\0\0\0", b'["b", 2', b"", b"7", b'"b"', b"\xff\xfe"])
def test_a_line_torn_inside_the_file_is_computed_again(tmp_path, torn) -> None:
    path = tmp_path / "cells.jsonl"
    with ResultStore(path, SETTINGS) as store:
        store.update({"a": 1.0, "b": 2.0, "c": 3.0})
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], torn, *lines[3:]]))
    with ResultStore(path, SETTINGS) as again:
        assert (again["a"], again["c"], "b" in again) == (1.0, 3.0, False)


def test_a_file_torn_in_its_first_line_begins_anew(tmp_path) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps({"settings": SETTINGS})[:20])
    with ResultStore(path, SETTINGS) as store:
        store.update({"a": 1})
    with ResultStore(path, SETTINGS) as again:
        assert again["a"] == 1


def test_results_of_other_settings_are_refused(tmp_path) -> None:
    path = tmp_path / "cells.jsonl"
    ResultStore(path, SETTINGS).close()
    with pytest.raises(InputError, match="differs in layers"):
        ResultStore(path, {**SETTINGS, "layers": [0]})


@pytest.mark.parametrize("text", ["hello\n", "[1, 2]\n3\n", '{"a": 1}\n', '{"settings": 3}\n', "no newline", "{"])
def test_other_files_are_left_alone(tmp_path, text) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    if text == "{":  # so short that it may be the beginning of a store
        ResultStore(path, SETTINGS).close()
        return
    with pytest.raises(InputError, match="is none"):
        ResultStore(path, SETTINGS)
    assert path.read_text() == text


def test_without_a_path_results_are_in_memory() -> None:
    store = ResultStore(None, SETTINGS)
    store.update({"a": 1})
    assert store["a"] == 1


def test_a_path_that_cannot_be_written_is_an_error(tmp_path) -> None:
    with pytest.raises(InputError, match="file that can be written"):
        ResultStore(tmp_path / "no" / "cells.jsonl", SETTINGS)
    with pytest.raises(InputError, match="is none"):
        ResultStore(tmp_path, SETTINGS)


def test_a_full_disk_is_an_error_with_the_path(tmp_path) -> None:
    with ResultStore(tmp_path / "cells.jsonl", SETTINGS) as store:
        assert store._file is not None
        store._file.close()
        store._file = open("/dev/full", "w")  # noqa: SIM115 - closed by the store
        with pytest.raises(InputError, match=r"No space left on device for .*cells\.jsonl"):
            store.update({"a": 1})


def _second_writer(path, answers) -> None:
    try:
        ResultStore(path, SETTINGS)
    except InputError as error:
        answers.put(str(error))
    else:
        answers.put("opened")


def test_one_writer_at_a_time(tmp_path) -> None:
    path, context = tmp_path / "cells.jsonl", get_context("spawn")
    answers = context.Queue()
    with ResultStore(path, SETTINGS) as store:
        store.update({"a": 1})
        other = context.Process(target=_second_writer, args=(path, answers))
        other.start()
        assert "in use by another" in answers.get(timeout=60)
        other.join()
    with ResultStore(path, SETTINGS) as again:
        assert again["a"] == 1


def sweep(store=None, **more) -> Sweep:
    model = small("qwen3_vl")
    axes = {"layer": [0, 2], "tokens": ["a/b", "a", "b"], "part": [0, 1]}
    return Sweep("test", model, metrics.kl_divergence(), axes, settings={"n": 1}, store=store, **more)


def test_a_sweep_computes_every_cell_once_and_fills_an_array(tmp_path) -> None:
    done, ran = [], []

    def compute(cell):
        ran.append(cell)
        if len(ran) == 5:
            raise KeyboardInterrupt
        return cell[0] + 10 * cell[2]

    with pytest.raises(KeyboardInterrupt), sweep(tmp_path / "s") as first:
        first.run_each(compute)
    assert len(first._store) == 4  # what was finished before Ctrl-C
    with sweep(tmp_path / "s", on_progress=lambda *counts: done.append(counts)) as second:
        second.run_each(compute)
        array = second.array()
    assert done == [(n, 12) for n in range(4, 13)]
    assert len(set(ran)) == 12
    assert len(ran) == 13  # the interrupted cell ran twice
    assert array.shape == (2, 3, 2)
    np.testing.assert_array_equal(array[1], [[2, 12]] * 3)


def test_cells_that_do_not_exist_are_nan() -> None:
    with sweep(cells=[(0, "a", 0), (2, "b", 1)]) as some:
        some.run([some.cells], lambda batch: [7.0] * len(batch))
        array = some.array()
    assert np.isnan(array).sum() == 10
    assert array[0, 1, 0] == array[1, 2, 1] == 7


def test_a_batch_is_computed_whole_or_not_at_all(tmp_path) -> None:
    """A resumed sweep runs the same batches as an uninterrupted one, so that it gives the same digits."""
    with sweep(tmp_path / "s") as first:
        first.run([first.cells[:2]], lambda batch: [1.0, 2.0])
    path = tmp_path / "s"
    path.write_bytes(path.read_bytes()[:-3])  # half of the batch is lost
    batches = []
    with sweep(path) as second:
        second.run([second.cells[:2]], lambda batch: batches.append(batch) or [1.0, 2.0])
    assert batches == [second.cells[:2]]


def test_a_store_of_another_metric_or_technique_is_refused(tmp_path) -> None:
    sweep(tmp_path / "s").__exit__(None, None, None)
    model = small("qwen3_vl")
    metric = metrics.log_probability(model.tokenizer, "a")
    for technique, other in (("test", metric), ("other", metrics.kl_divergence())):
        with pytest.raises(InputError, match=r"differs in (metric|technique)"):
            Sweep(technique, model, other, {"layer": [0]}, settings={"n": 1}, store=tmp_path / "s")
