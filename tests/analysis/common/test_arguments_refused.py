"""Wrong arguments of the shared and the editing analyses: each is an `InputError` at entry, before the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cutaway.analysis.common import metrics
from cutaway.analysis.common.activations import Site, harvest
from cutaway.analysis.common.prompts import Pair, align, prompt_from_spec, question
from cutaway.analysis.common.result import Array, Result
from cutaway.analysis.common.statistics import mean_interval
from cutaway.analysis.common.token_selection import (
    image_regions,
    position_groups,
    region_tokens,
    select_tokens,
    token_groups,
    word_tokens,
)
from cutaway.analysis.intervention.ablation import ablate
from cutaway.analysis.intervention.attention_knockout import attention_knockout
from cutaway.analysis.intervention.image_pathways import image_pathways
from cutaway.analysis.intervention.partial_forward import BaselineRun
from cutaway.analysis.intervention.patching import patch
from cutaway.errors import InputError
from tests.analysis.models import noise_image, small

MODEL = small("qwen3_vl")
PROMPT = question(MODEL, "What color?", images=[noise_image(0)], min_pixels=1024)
WORDS = question(MODEL, "What color?")
BATCH = MODEL.prepare([MODEL.prompt("a"), MODEL.prompt("b")], padding_side="left")
PAIR = Pair(PROMPT, question(MODEL, "What color?", images=[noise_image(1)], min_pixels=1024))
METRIC = metrics.logit_difference(MODEL.tokenizer, "a", "b")

NO_PROMPTS: list[Any] = ["What color?", None, 3, BATCH, {"question": "a"}]
NO_METRICS: list[Any] = [None, lambda logits: logits, "kl", metrics.kl_divergence]
NO_LAYERS: list[Any] = [[], [99], [-1], "all", [0.5], [True], 1.5, object()]
NO_GROUPS: list[Any] = [
    None, 3, [], {}, "", "pixels", [3], ["purple"], {"far": [10**6]}, {"no": []}, "regions 0x0", {"image": 0.5},
    {"box": (0, 0, 0, 0)}, {"box": "all"}, {"box": (0, 0, 8, 8), "image": 7}, {"frame": 1}, {"sun": {"box": (1, 2)}},
]  # fmt: skip


def cases() -> list[tuple[str, Any]]:
    """A name and a call for every wrong argument."""
    calls: list[tuple[str, Any]] = []

    def add(name: str, function: Any, *arguments: Any, **options: Any) -> None:
        calls.append((f"{name} {len(calls)}", lambda: function(*arguments, **options)))

    for model in (None, "nano"):
        add("patch model", patch, model, PAIR, METRIC)
        add("ablate model", ablate, model, PROMPT, METRIC)
        add("knockout model", attention_knockout, model, PROMPT, METRIC)
        add("pathways model", image_pathways, model, PROMPT, METRIC)
        add("harvest model", harvest, model, [PROMPT])
        add("answer_logits model", metrics.answer_logits, model, PROMPT)
    for prompt in NO_PROMPTS:
        add("patch clean", patch, MODEL, Pair(prompt, PROMPT), METRIC)
        add("patch corrupt", patch, MODEL, [PAIR, Pair(PROMPT, prompt)], METRIC)
        add("patch pairs", patch, MODEL, prompt, METRIC)
        add("ablate", ablate, MODEL, prompt, METRIC)
        add("ablate list", ablate, MODEL, [PROMPT, prompt], METRIC)
        add("ablate others", ablate, MODEL, PROMPT, METRIC, how="resample", others=[prompt])
        add("knockout", attention_knockout, MODEL, prompt, METRIC)
        add("pathways", image_pathways, MODEL, prompt, METRIC)
        add("pathways other", image_pathways, MODEL, PROMPT, METRIC, how="swap", other=prompt)
        add("harvest", harvest, MODEL, prompt)
        add("harvest list", harvest, MODEL, [prompt])
        add("baseline", BaselineRun, MODEL, prompt)
        add("align", align, PROMPT, prompt)
        add("position_groups", position_groups, MODEL, prompt, "tokens")
    for prompt in ("What color?", None, 3):
        add("token_groups", token_groups, MODEL, prompt)
        add("select_tokens", select_tokens, MODEL, prompt, "last")
        add("word", word_tokens, MODEL, prompt, "color")
        add("regions", image_regions, prompt, 2, 2)
        add("region", region_tokens, prompt, (0, 0, 8, 8))
        add("answer_logits", metrics.answer_logits, MODEL, prompt)
        add("measure", metrics.measure, MODEL, prompt, METRIC)
    for prompts in ([PROMPT], (PROMPT, PROMPT), []):
        add("patch list of prompts", patch, MODEL, prompts, METRIC)
        add("knockout list", attention_knockout, MODEL, prompts, METRIC)
        add("pathways list", image_pathways, MODEL, prompts, METRIC)
        add("token_groups list", token_groups, MODEL, prompts)
        add("answer_logits list", metrics.answer_logits, MODEL, prompts)
    add("ablate none", ablate, MODEL, [], METRIC)
    for metric in NO_METRICS:
        add("patch metric", patch, MODEL, PAIR, metric)
        add("ablate metric", ablate, MODEL, PROMPT, metric)
        add("knockout metric", attention_knockout, MODEL, PROMPT, metric)
        add("pathways metric", image_pathways, MODEL, PROMPT, metric)
        add("measure metric", metrics.measure, MODEL, PROMPT, metric)
    for layers in NO_LAYERS:
        add("patch layers", patch, MODEL, PAIR, METRIC, layers=layers)
        add("ablate layers", ablate, MODEL, PROMPT, METRIC, layers=layers)
    for where in NO_GROUPS:
        add("patch where", patch, MODEL, PAIR, METRIC, where=where)
        add("ablate where", ablate, MODEL, PROMPT, METRIC, where=where)
    for name in (None, "neuron", "", 3, ["head"], "Head"):
        add("patch component", patch, MODEL, PAIR, METRIC, component=name)
        add("ablate component", ablate, MODEL, PROMPT, METRIC, component=name)
        add("patch direction", patch, MODEL, PAIR, METRIC, direction=name)
        add("ablate how", ablate, MODEL, PROMPT, METRIC, how=name)
        add("pathways how", image_pathways, MODEL, PROMPT, METRIC, how=name)
        add("harvest pool", harvest, MODEL, [PROMPT], pool=name)
    for number in (0, -1, None, "1", 2.5, True):
        add("patch memory", patch, MODEL, PAIR, METRIC, memory=number)
    for number in (0, -1, "1", 2.5, True, 10**6):
        add("knockout width", attention_knockout, MODEL, PROMPT, METRIC, width=number)
    for cuts in (
        None,
        [],
        "image",
        ["image"],
        [("image",)],
        [("image", "purple")],
        [("image", None)],
        [(None, "last")],
        3,
    ):
        add("knockout cuts", attention_knockout, MODEL, PROMPT, METRIC, cuts=cuts)
    for store in (3, object(), b"cells"):
        add("patch store", patch, MODEL, PAIR, METRIC, store=store)
    for selection in (None, "purple", "", [], [10**6], 1.5, {"box": (1, 2)}, {"boxes": 1}, {}, {"image": 9}, object()):
        add("select_tokens", select_tokens, MODEL, PROMPT, selection)
        add("harvest where", harvest, MODEL, [PROMPT], where=selection)
    add("select_tokens sample", select_tokens, MODEL, PROMPT, "last", 1)
    add("select_tokens sample", select_tokens, MODEL, PROMPT, "last", "first")
    for spec in (None, {}, "kl", {"name": None}, {"name": []}, {"name": "kl", "answer": "a"}, {"name": "probability"}):
        add("metric spec", metrics.metric_from_spec, MODEL.tokenizer, spec)
    for answer in (None, "", [], 10**9, True, 1.5, ["a"]):
        add("answer", metrics.log_probability, MODEL.tokenizer, answer)
        add("foil", metrics.logit_difference, MODEL.tokenizer, "a", answer)
    for spec in (None, "What?", {"images": []}, {"question": 3}, {"question": "a", "sounds": []}):
        add("prompt spec", prompt_from_spec, MODEL, spec)
    add("question", question, MODEL, None)
    add("custom", metrics.custom_metric, None)
    add("site", Site.one, MODEL, "layers.*.layer_output")
    add("result", Result.from_json, [])
    add("array", Array(np.zeros(3), ("layer",)).at, layer=5)
    add("interval", mean_interval, [])
    add("words alone", image_pathways, MODEL, WORDS, METRIC)
    return calls


CASES = cases()


@pytest.mark.parametrize("call", [call for _, call in CASES], ids=[name for name, _ in CASES])
def test_a_wrong_argument_is_an_input_error(call) -> None:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert message.rstrip().endswith((".", ")", "'", "}", "]")), message
    assert len(message) > 30


NOTHING_CHANGES = [
    lambda: patch(MODEL, PAIR, METRIC, component="deepstack", where=["last"]),
    lambda: patch(MODEL, PAIR, METRIC, component="deepstack", where=["image", "question"]),
    lambda: ablate(MODEL, PROMPT, METRIC, component="deepstack", where=["question"], how="zero"),
    lambda: ablate(MODEL, PROMPT, METRIC, component="token", layers=[2]),
    lambda: ablate(MODEL, PROMPT, METRIC, how="zero", others=[PAIR.corrupt]),
    lambda: attention_knockout(MODEL, PROMPT, METRIC, cuts=[("last", "image")]),
    lambda: attention_knockout(MODEL, PROMPT, METRIC, cuts=[("image", "question"), ("question", "image")]),
    lambda: attention_knockout(MODEL, PROMPT, METRIC, cuts=[("last", "last")]),
]


@pytest.mark.parametrize("number", range(len(NOTHING_CHANGES)))
def test_an_edit_that_would_change_nothing_is_refused(number) -> None:
    with pytest.raises(InputError, match=r"nothing|none|only|Leave it out"):
        NOTHING_CHANGES[number]()


def test_dividing_a_prompt_leaves_out_groups_without_a_deepstack_term() -> None:
    result = patch(MODEL, PAIR, METRIC, component="deepstack", where="groups")
    assert "last" not in result.effect.names("tokens")
    assert "image" in result.effect.names("tokens")
    assert np.abs(result.effect.values).min() > 0


def test_a_region_is_read_as_a_region_and_not_as_positions() -> None:
    box = {"box": (0, 0, 40, 40), "image": 0}
    expected = region_tokens(PROMPT, (0, 0, 40, 40))
    assert 0 < len(expected) < len(token_groups(MODEL, PROMPT)["image"])
    for where in (box, {"box": (0, 0, 40, 40)}, {"corner": box}):
        ((_, positions),) = position_groups(MODEL, PROMPT, where).items()
        assert torch.equal(positions, expected)
    by_box = ablate(MODEL, PROMPT, METRIC, component="token", how="zero", where=box)
    by_position = ablate(MODEL, PROMPT, METRIC, component="token", how="zero", where={"corner": expected})
    np.testing.assert_array_equal(by_box.drop.values, by_position.drop.values)
    patched = patch(MODEL, PAIR, METRIC, where=box, layers=[0], attribution=False)
    named = patch(MODEL, PAIR, METRIC, where={"corner": expected}, layers=[0], attribution=False)
    np.testing.assert_array_equal(patched.patched.values, named.patched.values)
    cut = attention_knockout(MODEL, PROMPT, METRIC, cuts=[(box, "last")], width=MODEL.num_layers)
    assert cut.values.names("cut") == ("box 0, 0, 40, 40 image 0 → last",)
    whole = position_groups(MODEL, PROMPT, {"image": 0})  # the whole image, not position 0
    assert torch.equal(next(iter(whole.values())), token_groups(MODEL, PROMPT)["image"])
