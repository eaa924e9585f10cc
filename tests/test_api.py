"""`Model`: loaded by name or drawn at random, its names the tree's, and all that people have becomes `Inputs`."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace

import huggingface_hub
import pytest
import torch

import cutaway
from cutaway.api import Model, load, random
from cutaway.batch import Inputs
from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.write import save_weights
from cutaway.errors import (
    CheckpointError,
    ConfigError,
    InputError,
    NoRunError,
    Unavailable,
    UnknownValue,
)
from tests.checkpoint.trees import raw_config

CKPT = "ckpt/qwen3_vl"


@pytest.fixture(scope="module")
def model(oracle) -> Model:
    """The reference checkpoint; a test must not change its weights."""
    return load(oracle / CKPT, device="cpu")


@pytest.fixture
def prompt(model) -> str:
    return model.prompt("What is it?", images=1)


# -- loading


def test_what_a_load_gives(model, oracle) -> None:
    assert (model.num_layers, model.hidden_size, model.vocab_size, model.intermediate_size) == (4, 32, 306, 48)
    assert (model.num_heads, model.num_kv_heads, model.head_dim) == (4, 2, 16)
    assert (model.vision.num_layers, model.vision.vision_hidden_size, model.vision.patch_size) == (4, 24, 16)
    assert (model.config.family, model.task, model.dtype, model.device.type) == (
        "qwen3_vl",
        "image-text-to-text",
        torch.float32,
        "cpu",
    )
    assert model.report.tied
    assert model.folder == oracle / CKPT
    assert model.settings().eos_token_id == (282, 280)


def test_the_folder_that_transformers_saved_computes_the_same(model, oracle, prompt, red) -> None:
    """It has weights and config alone: what was prepared elsewhere can be given to it."""
    saved = load(oracle / f"{CKPT}.v5", device="cpu")
    inputs = model.prepare(prompt, images=[red])
    assert torch.equal(saved(inputs), model(inputs))
    assert saved.generate(inputs, max_new_tokens=3).ids == model.generate(inputs, max_new_tokens=3).ids
    with pytest.raises(Unavailable, match="no tokenizer"):
        saved("words")


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16, "float64"])
def test_dtype(oracle, dtype) -> None:
    loaded = load(oracle / CKPT, dtype=dtype, device="cpu")
    wanted = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    assert {p.dtype for p in loaded.parameters()} == {wanted} == {loaded.dtype}


def test_a_hub_id(oracle, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(oracle / CKPT))
    assert load("someone/tiny", revision="main", device="cpu").num_layers == 4


def test_a_model_that_is_refused_is_not_fetched(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(raw_config("qwen3_vl") | {"quantization_config": {"bits": 4}}))
    requests = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: requests.append(k) or str(tmp_path))
    with pytest.raises(ConfigError, match="quantised"):
        load("someone/tiny-AWQ")
    assert [k["allow_patterns"] for k in requests] == [["*.json", "*.jinja", "*.txt"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_and_answers(family, oracle, red) -> None:
    model = load(oracle / "ckpt" / family, device="cpu")
    assert model.config.family == family
    assert isinstance(model.ask("?", images=[red], max_new_tokens=3), str)
    drawn = random(raw_config(family), device="cpu")
    assert drawn.generate(drawn.prompt("?", 1), images=[red], max_new_tokens=3).ids


def test_progress(oracle) -> None:
    seen = []
    load(oracle / CKPT, device="cpu", progress=lambda done, total: seen.append(done / total))
    assert seen[-1] == 1


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"task": "captioning"}, InputError, "task must be one of image-text-to-text, text-generation"),
        ({"dtype": "int4"}, InputError, "dtype must be"),
        ({"device": "gpu"}, InputError, "device 'gpu'"),
        ({"device": "meta"}, InputError, "dispatch=False"),
        ({"attn_implementation": "flash_attention_9"}, ConfigError, "attn_implementation must be one of"),
    ],
)
def test_arguments_that_cannot_be(oracle, options, error, says) -> None:
    with pytest.raises(error, match=says):
        load(oracle / CKPT, **options)


def test_a_name_that_is_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="There is no folder 'qwen'"):
        load("qwen")


# -- names


def test_names_are_the_trees(model) -> None:
    assert model.layers is model.root.model.language_model.layers
    assert model.vision is model.root.model.visual
    assert model.projector is model.root.model.visual.merger
    assert list(model.state_dict()) == list(model.root.state_dict())
    assert {"ask", "layers", "state_dict", "logits"} <= set(dir(model))


def test_values_outside_a_run(model) -> None:
    with pytest.raises(NoRunError, match="no run is open"):
        _ = model.logits
    with pytest.raises(NoRunError, match="no run is open"):
        model.logits = torch.zeros(1)
    with pytest.raises(UnknownValue, match="logits"):
        _ = model.logitz


def test_assigning_a_part_replaces_it_in_the_tree(oracle) -> None:
    own = load(oracle / CKPT, device="cpu")
    head = torch.nn.Linear(32, 306, bias=False)
    own.lm_head = head
    assert own.root.lm_head is head
    assert "lm_head" not in vars(own)


def test_a_copy_is_a_model_of_its_own(model) -> None:
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.lm_head.weight.zero_()
    assert twin.root is not model.root
    assert model.lm_head.weight.abs().sum() > 0


# -- preparing


def test_everything_that_prepare_takes_is_the_same_batch(model, prompt, red) -> None:
    inputs = model.processor(text=prompt, images=[red], return_tensors="pt")
    logits = model(inputs)
    plain = dict(inputs)
    for batch in (inputs, plain, {k: v for k, v in plain.items() if k != "mm_token_type_ids"}):
        assert torch.equal(model(batch), logits)
    assert torch.equal(model(**plain), logits)
    assert torch.equal(model(prompt, images=[red]), logits)
    turn = [{"role": "user", "content": [{"type": "image", "image": red}, {"type": "text", "text": "What is it?"}]}]
    assert torch.equal(model(turn), logits)
    assert isinstance(model.prepare(plain), Inputs)


def test_bare_ids(model) -> None:
    ids = torch.tensor(model.tokenizer.encode("just words"))
    assert torch.equal(model(ids), model("just words"))
    assert torch.equal(model(ids[None]), model("just words"))


def test_a_prepared_batch_takes_no_images_beside_it(model, prompt, red) -> None:
    inputs = model.prepare(prompt, images=[red])
    with pytest.raises(InputError, match="cannot take images, max_pixels as well"):
        model.prepare(inputs, images=[red], max_pixels=5000)


def test_a_list_is_a_batch(model, prompt, red, wide) -> None:
    both = model.prepare([prompt, prompt], images=[red, wide], padding_side="left")
    assert both.input_ids.shape[0] == 2
    alone = model(prompt, images=[wide])
    torch.testing.assert_close(model(both)[1, -alone.shape[1] :], alone[0], rtol=0, atol=1e-5)


def test_gradients_only_when_asked(model) -> None:
    assert not model("words").requires_grad
    assert model("words", grad=True).requires_grad


def test_what_comes_off_the_inputs(model, prompt, red) -> None:
    inputs = model.prepare(prompt, images=[red])
    with model.trace(inputs):
        assert model.vision.image_token_mask.sum() == 4
        assert not model.vision.video_token_mask.any()
        assert torch.equal(model.input_ids, inputs.input_ids)
        assert torch.equal(model.position_ids, inputs.position_ids)
        assert model.input_size == (1, inputs.input_ids.shape[1])


# -- answers


def test_ask_is_generate_on_the_chat_prompt(model, prompt, red) -> None:
    answer = model.ask("What is it?", images=[red], max_new_tokens=6)
    assert answer == model.generate(prompt, images=[red], max_new_tokens=6).text
    assert "".join(model.ask("What is it?", images=red, max_new_tokens=6, stream=True)) == answer


def test_ask_with_a_system_message_or_messages(model, red) -> None:
    turn = {"role": "user", "content": [{"type": "image", "image": red}, {"type": "text", "text": "And?"}]}
    system = {"role": "system", "content": "Be brief."}
    answer = model.ask("And?", images=[red], system="Be brief.", max_new_tokens=4)
    assert answer == model.ask([system, turn], max_new_tokens=4)
    assert answer != model.ask([turn], max_new_tokens=4)
    with pytest.raises(InputError, match="system message into the messages"):
        model.ask([turn], system="Be brief.")


def test_the_processors_options_reach_it(model, red) -> None:
    big = red.resize((256, 256))
    low = model.generate(model.prompt("?", 1), images=[big], max_pixels=4096, max_new_tokens=1)
    high = model.generate(model.prompt("?", 1), images=[big], max_new_tokens=1)
    sizes = [a.forwards.generation.inputs.input_ids.shape[1] for a in (low, high)]
    assert sizes[0] < sizes[1]


def test_an_argument_of_another_library_says_what_to_use(model) -> None:
    with pytest.raises(InputError, match="Use `max_new_tokens`"):
        model.ask("Hi", max_tokens=3)


def test_a_generation_stepped_is_the_same_generation(model, prompt, red) -> None:
    plain = model.generate(prompt, images=[red], max_new_tokens=5)
    shapes = []
    with model.generate(prompt, images=[red], max_new_tokens=5) as run:
        for step in run:
            shapes.append(tuple(model.layers[1].layer_output.shape))
            assert step.phase == ("decode" if step.index else "prompt")
    assert run.ids == plain.ids
    assert run.text == plain.text
    assert shapes[1:] == [(1, 1, 32)] * 4
    assert shapes[0][1] == run.forwards.generation.inputs.input_ids.shape[1]


def test_every_step_knows_where_the_prompts_tokens_lie(model, prompt, red) -> None:
    want = model.prepare(prompt, images=red)
    image_tokens = want.mm_token_type_ids == 1
    with model.generate(prompt, images=[red], max_new_tokens=3, ignore_eos=True) as run:
        for step in run:
            assert torch.equal(step.geometry.select(image=0).mask, image_tokens)
            assert step.geometry is run.geometry
            assert "geometry" in dir(step)
            looks = model.layers[1].self_attn.attention_probabilities[0, :, -1].mean(0)
            over = step.geometry.cells(looks[: image_tokens.shape[1]], image=0)
            assert over.size == image_tokens.sum()
            assert over.sum() == pytest.approx(float(looks[: image_tokens.shape[1]][image_tokens[0]].sum()), rel=1e-5)
    assert step.index == 2


@pytest.mark.parametrize("call", ["ask", "generate"])
def test_max_length_alone_is_no_answers_length(model, red, monkeypatch, call) -> None:
    def forward(*_, **__):
        raise AssertionError("a forward ran")

    monkeypatch.setattr(type(model.root), "forward", forward)
    with pytest.raises(InputError, match=r"`max_length` is a prompt's.*An answer's length is max_new_tokens"):
        getattr(model, call)("words", max_length=20)


def test_max_length_with_truncation_cuts_the_prompt(model) -> None:
    whole = model.prepare("many words and more of them").input_ids
    answer = model.generate("many words and more of them", max_length=4, truncation=True, max_new_tokens=2)
    assert torch.equal(answer.forwards.generation.inputs.input_ids, whole[:, :4])


def test_ids_texts_and_probabilities_of_an_answer(model, prompt, red) -> None:
    answer = model.generate(prompt, images=[red], max_new_tokens=3, ignore_eos=True)
    first = model(prompt, images=[red])[0, -1].log_softmax(-1)
    assert answer.logprobs[0][0] == pytest.approx(float(first.max()), abs=1e-4)
    assert [len(row) for row in answer.logprobs] == [len(row) for row in answer.ids] == [3]
    assert answer.texts == [answer.text]


def test_logits_and_the_last_probabilities_asked_together(model, prompt, red) -> None:
    """The head runs for the last token alone only when the logits are not asked for."""
    values = model.run(prompt, images=[red], read=["next_token_probs", "logits"])
    assert torch.equal(values["logits"], model(prompt, images=[red]))
    alone = model.run(prompt, images=[red], read="next_token_probs")
    torch.testing.assert_close(values["next_token_probs"], alone["next_token_probs"])
    torch.testing.assert_close(alone["next_token_probs"][0], values["logits"][0, -1].softmax(-1))


def test_edits_at_every_step(model, prompt, red) -> None:
    def turned(value):
        return value * -1

    plain = model.generate(prompt, images=[red], max_new_tokens=5)
    edited = model.generate(prompt, images=[red], max_new_tokens=5, edit={"layers.1.layer_output": turned})
    with model.generate(prompt, images=[red], max_new_tokens=5) as run:
        for _ in run:
            model.layers[1].layer_output[:] *= -1
    assert edited.ids == run.ids != plain.ids


def test_a_batch_is_generated_as_each_row_alone(model, prompt, red) -> None:
    texts = model.generate([prompt, "once"], images=[red], max_new_tokens=4)
    assert texts.ids[0] == model.generate(prompt, images=[red], max_new_tokens=4).ids[0]
    assert texts.ids[1] == model.generate("once", max_new_tokens=4).ids[0]
    assert len(texts.texts) == 2


# -- without images, without weights


def test_a_text_only_load(oracle, red) -> None:
    text = load(oracle / CKPT, task="text-generation", device="cpu")
    assert len(text.report.skipped) == 69
    assert text("words").shape == (1, 5, 306)
    assert isinstance(text.generate("words", max_new_tokens=2).text, str)
    with pytest.raises(Unavailable, match="task="):
        _ = text.processor
    with pytest.raises(Unavailable, match="task="):
        _ = text.vision.tower_output
    with pytest.raises(Unavailable, match="task="):
        _ = text.layers[0].deepstack_output
    for refuse in (lambda: text.ask("?", images=[red]), lambda: text(text.prompt("?", 1), images=[red])):
        with pytest.raises(InputError, match="cannot take images"):
            refuse()
    assert "vision.image_token_mask" not in text.input_values(text.prepare("words"))


def test_no_dispatch_has_the_tree_and_the_sizes(oracle) -> None:
    bare = load(oracle / CKPT, dispatch=False)
    assert (bare.num_layers, bare.device.type, bare.report) == (4, "meta", None)
    assert len(list(bare.parameters())) == 115
    assert bare.prepare("words").input_ids.device.type == "cpu"
    for run in (lambda: bare("x"), lambda: bare.ask("x"), lambda: bare.generate("x")):
        with pytest.raises(Unavailable, match="dispatch=False"):
            run()


def test_no_dispatch_by_a_published_size(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    bare = load("Qwen3-VL-32B", dispatch=False)
    assert (bare.num_layers, bare.vision.num_layers, bare.num_heads) == (64, 27, 64)
    with pytest.raises(Unavailable, match="no tokenizer"):
        bare.prompt("x")


def test_no_dispatch_from_a_config_alone(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw_config("qwen3_vl")))
    bare = load(tmp_path, dispatch=False)
    assert bare.num_layers == 4
    with pytest.raises(Unavailable, match="no tokenizer"):
        _ = bare.processor


# -- at random


def test_random_weights_answer(red) -> None:
    drawn = random(raw_config("qwen3_vl"), device="cpu")
    assert drawn.report is None
    assert drawn.dtype == torch.float32
    assert isinstance(drawn.ask("Any bytes: é ✓", images=[red], max_new_tokens=4), str)
    red_logits, blank = drawn(drawn.prompt("?", 1), images=[red]), drawn(drawn.prompt("?", 1), images=[red.rotate(45)])
    assert (red_logits - blank).abs().max() > 1e-3, "the image matters"


def test_random_is_the_same_for_the_same_seed() -> None:
    one, same, other = (random(raw_config("qwen3_vl"), seed=seed, device="cpu")("words") for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_random_with_a_tokenizer_of_its_own(oracle) -> None:
    drawn = random(raw_config("qwen3_vl"), tokenizer=oracle / CKPT, device="cpu")
    assert drawn.tokenizer.encode("the user") == load(oracle / CKPT, dispatch=False).tokenizer.encode("the user")


def test_random_saved_is_loaded_again(oracle, tmp_path) -> None:
    drawn = random(raw_config("qwen3_vl"), device="cpu", dtype="bfloat16")
    save_weights(drawn.root, tmp_path, raw_config("qwen3_vl"))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((oracle / CKPT / file).read_bytes())
    again = load(tmp_path, device="cpu", dtype="bfloat16")
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(again(ids), drawn(ids))


@pytest.mark.parametrize("name", ["Qwen9-VL", "Qwen3-VL-2"])
def test_random_of_no_size(name) -> None:
    with pytest.raises(ConfigError, match="Nearest"):
        random(name)


# -- the package


def test_the_public_names() -> None:
    for name in cutaway.__all__:
        assert getattr(cutaway, name) is not None
    assert cutaway.load is load
    assert cutaway.__version__
    assert set(cutaway.__all__) <= set(dir(cutaway))
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        _ = cutaway.laod


def test_import_brings_in_nothing_heavy() -> None:
    heavy = "torch numpy PIL av tokenizers safetensors huggingface_hub jinja2 greenlet transformers typer rich"
    code = f"import cutaway, sys; print([n for n in {heavy.split()!r} if n in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("values", [[1, 1, 2, 2], [0.0, -1e9, 0.0, 0.0]])
def test_a_mask_of_other_values_is_refused_on_every_way_in(model, values) -> None:
    batch = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": torch.tensor([values])}
    inputs = replace(model.prepare({"input_ids": batch["input_ids"]}), attention_mask=batch["attention_mask"])
    for options in (batch, inputs):
        for way in (model, model.trace, model.run, model.generate, model.prepare):
            with pytest.raises(InputError, match="`attention_mask` has the values"):
                way(options, **({"read": "logits"} if way == model.run else {}))
    for way in (model, model.generate):
        with pytest.raises(InputError, match="`attention_mask` has the values"):
            way(**batch)
