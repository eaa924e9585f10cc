"""What people get wrong or give in another form: answered before compute, in words that say what to do."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from cutaway.api import Model, load
from cutaway.errors import EditError, InputError, Unavailable
from tests.inputs.media import saved
from tests.trace.toy import Toy, opened


@pytest.fixture(scope="module")
def model(oracle) -> Model:
    """The reference checkpoint; a test must not change its weights."""
    return load(oracle / "ckpt/qwen3_vl", device="cpu")


def unread(*_, **__):
    raise AssertionError("a forward ran")


def test_ask_refuses_several_questions_before_compute(model, monkeypatch) -> None:
    batch = [[{"role": "user", "content": word}] for word in ("one", "two")]
    monkeypatch.setattr(type(model.root), "forward", unread)
    for stream in (False, True):
        with pytest.raises(InputError, match=r"answers one question; got 2\. Use `generate\(\.\.\.\)\.texts`"):
            model.ask(batch, stream=stream)


@pytest.mark.parametrize("read", [None, 3, [3], ["logits", None]])
def test_what_is_read_is_named_by_words(model, read, monkeypatch) -> None:
    monkeypatch.setattr(type(model.root), "forward", unread)
    with pytest.raises(InputError, match=r"`read` is an address or pattern, or a list of them.* got"):
        model.run(torch.tensor([[1, 2, 3]]), read=read)


@pytest.mark.parametrize(
    ("call", "wrong", "advice"),
    [
        ("run", "reads", "Did you mean `read`?"),
        ("run", "edits", "Did you mean `edit`?"),
        ("run", "when", r"`model.generate\(..., edit=…, when=…\)`"),
        ("trace", "grads", "Did you mean `grad`?"),
        ("trace", "read", r"`model.run\(..., read=…\)`"),
        ("trace", "to_end", r"run\.finish\(\)"),
    ],
)
def test_an_argument_of_another_call_is_answered_with_that_call(model, call, wrong, advice) -> None:
    with pytest.raises(InputError, match=f"`model.{call}` takes no argument '{wrong}'. .*{advice}"):
        getattr(model, call)("words", **{wrong: None})


@pytest.mark.parametrize(("wrong", "right"), [("image", "images"), ("video", "videos"), ("edits", "edit")])
def test_a_misspelt_argument_is_answered_with_one_of_the_calls(model, wrong, right) -> None:
    with pytest.raises(InputError, match=f"no argument '{wrong}'. Did you mean {right}?"):
        model.generate("words", **{wrong: None})


def test_seeds_are_counted_even_where_none_is_used(model) -> None:
    with pytest.raises(InputError, match="has 1, got 2 seeds"):
        model.generate("words", seed=[1, 2], temperature=0, max_new_tokens=2)


def test_one_message_is_not_a_batch(model) -> None:
    with pytest.raises(InputError, match="Put it into a list"):
        model.ask({"role": "user", "content": "words"})


def test_a_buffer_is_an_image_and_is_read_again(model, red) -> None:
    buffer = io.BytesIO(saved(red, "PNG"))
    buffer.seek(7)  # as after a write
    want = model.prepare(model.prompt("?", images=1), images=[red])
    for _ in range(2):
        for form in (buffer, [buffer], [[buffer]]):
            assert torch.equal(model.prepare(model.prompt("?", images=1), images=form).pixel_values, want.pixel_values)
    messages = [{"role": "user", "content": [{"type": "image", "image": buffer}, "?"]}]
    assert torch.equal(model.prepare(messages).pixel_values, want.pixel_values)


def test_what_a_body_does_to_the_inputs_reaches_neither_the_batch_nor_the_forward(model, red) -> None:
    batch = model.prepare(model.prompt("?", images=1), images=[red])
    before = {key: value.clone() for key, value in batch.items()} | {"position_ids": batch.position_ids.clone()}
    want = model(batch)
    for address in ("input_ids", "attention_mask", "position_ids", "vision.image_token_mask"):
        with pytest.raises(EditError, match="changed in place, and it is read-only"), model.trace(batch) as run:
            run.collect([address])[address].zero_()
    model.run(batch, read=["input_ids", "position_ids"], reduce=lambda value: value.clone().zero_())
    assert torch.equal(model.run(batch, read="logits")["logits"], want)
    assert all(torch.equal(getattr(batch, key), value) for key, value in before.items())


def test_a_size_that_there_is_not_says_why_by_its_address_too(model) -> None:
    with pytest.raises(Unavailable, match="cuts each image into its own grid"):
        model.run("words", read=["vision.image_size"])


def test_an_answer_says_what_it_is(model) -> None:
    answer = model.generate("words", max_new_tokens=2, ignore_eos=True)
    assert repr(answer) == "<Answer of 1 sample(s), not run yet: read `text` or `ids`, or step it in a `with`>"
    assert answer.ids
    assert repr(answer) == "<Answer of 1 sample(s), 2 tokens so far>"


def test_a_backward_without_grad_says_how() -> None:
    toy = Toy()
    with pytest.raises(RuntimeError) as error, opened(toy):
        toy.logits.sum().backward()
    assert error.value.__notes__ == ["This run records no gradients; open it with `grad=True`."]


def test_a_run_lists_the_names_of_the_tree() -> None:
    toy = Toy()
    with opened(toy) as run:
        assert {"layers", "logits", "vision", "finish", "result"} <= set(dir(run))


def test_a_declared_value_says_what_it_is() -> None:
    assert repr(Toy.logits).startswith("<Value logits [")


def test_a_closed_image_is_not_called_damaged(tmp_path) -> None:
    from cutaway.inputs.image.open import read_image

    (tmp_path / "a.png").write_bytes(saved(Image.new("RGB", (8, 8)), "PNG"))
    image = Image.open(tmp_path / "a.png")
    image.close()
    with pytest.raises(InputError, match="was closed: open it again"):
        read_image(image)


# -- a processor's mapping as keywords, and arguments that are odd


def test_every_call_takes_a_processors_mapping_as_keywords(model, red) -> None:
    prompt = model.prompt("What is it?", images=1)
    batch = dict(model.processor(text=prompt, images=[red], return_tensors="pt"))
    want = model.generate(prompt, images=[red], max_new_tokens=3)
    assert model.generate(**batch, max_new_tokens=3).ids == want.ids
    assert model.ask(**batch, max_new_tokens=3) == want.text
    assert "".join(model.ask(**batch, max_new_tokens=3, stream=True)) == want.text
    with model.trace(**batch):
        logits = model.logits
    assert torch.equal(logits, model(prompt, images=[red]))
    assert torch.equal(model.run(**batch, read="logits")["logits"], logits)
    assert torch.equal(model.prepare(**batch).pixel_values, batch["pixel_values"])


@pytest.mark.parametrize("call", ["ask", "generate", "trace", "run", "prepare"])
def test_a_call_without_a_prompt_says_what_a_prompt_is(model, call) -> None:
    with pytest.raises(InputError, match=r"A prompt is needed: .*got nothing"):
        getattr(model, call)()


def test_a_prompt_beside_a_mapping_is_refused(model, red) -> None:
    ids = model.prepare("words").input_ids
    for call in (model.generate, model.ask):
        with pytest.raises(InputError, match="input_ids"):
            call("words", input_ids=ids)
    with pytest.raises(InputError, match="cannot take images as well"):
        model.generate(input_ids=ids, images=[red])


@pytest.mark.parametrize("chunk", [0, -1, 1.5, True, "8"])
def test_a_chunk_that_is_no_number_of_tokens_is_refused(model, chunk) -> None:
    with pytest.raises(InputError, match="prefill_chunk must be a number of tokens of at least 1"):
        model.generate("words", prefill_chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 2, 5, 10**9])
def test_any_chunk_gives_the_same_answer_to_a_mixed_batch(model, red, wide, chunk) -> None:
    prompts = [model.prompt("?", images=1), "text alone", model.prompt("And these two?", images=2)]
    options = {"images": [red, wide, red], "max_new_tokens": 4, "ignore_eos": True}
    whole = model.generate(prompts, **options)
    pieces = model.generate(prompts, **options, prefill_chunk=chunk)
    assert pieces.ids == whole.ids
    alone = model.generate(prompts[2], images=[wide, red], max_new_tokens=4, ignore_eos=True)
    assert whole.ids[2] == alone.ids[0]


@pytest.mark.parametrize("prompt", ["", [], ["words", ""], {"input_ids": torch.zeros(1, 0, dtype=torch.int64)}])
def test_an_empty_prompt_is_refused_before_compute(model, prompt) -> None:
    with pytest.raises(InputError):
        model.generate(prompt, max_new_tokens=2)


def test_no_tokens_are_refused_and_many_answers_are_made_by_many_prompts(model) -> None:
    with pytest.raises(InputError, match="max_new_tokens must be a whole number of at least 1"):
        model.generate("words", max_new_tokens=0)
    with pytest.raises(InputError, match=r"generate\(\[prompt\] \* n, seed="):
        model.generate("words", num_return_sequences=3)
    answers = model.generate(["words"] * 3, seed=[1, 2, 3], temperature=3.0, max_new_tokens=6, ignore_eos=True)
    alone = model.generate("words", seed=2, temperature=3.0, max_new_tokens=6, ignore_eos=True)
    assert answers.ids[1] == alone.ids[0] != answers.ids[0]


def test_a_stop_string_can_be_a_special_token(nano, red) -> None:
    prompt = nano.prompt("What color is the square?", images=1)
    whole = nano.generate(prompt, images=[red])
    assert whole.text_with_special_tokens == f"{whole.text}<|im_end|>"
    stopped = nano.generate(prompt, images=[red], stop="<|im_end|>", ignore_eos=True)
    assert (stopped.text, stopped.result.finish_reasons) == (whole.text, ["stop"])
    assert stopped.ids == whole.ids


def test_a_stop_string_on_a_model_without_a_tokenizer_says_what_works(oracle) -> None:
    bare = load(oracle / "ckpt" / "qwen3_vl.v5", device="cpu")
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(InputError, match=r"no tokenizer to make it.*`eos_token_id`"):
        bare.generate(ids, stop="x")
    first = bare.generate(ids, max_new_tokens=1).ids[0][0]
    assert bare.generate(ids, eos_token_id=first, max_new_tokens=3).result.finish_reasons == ["eos"]
