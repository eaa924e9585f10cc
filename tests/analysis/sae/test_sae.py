"""Dictionaries: SAELens' format honoured or refused, unedited splices exact, a planted feature's region found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from cutaway.analysis.common.activations import Site
from cutaway.analysis.common.prompts import question
from cutaway.analysis.common.result import Result
from cutaway.analysis.sae.regions import feature_regions
from cutaway.analysis.sae.sae import CONFIG, SAE, WEIGHTS, feature_activations, feature_edit
from cutaway.checkpoint.tensor_file import load_tensors, save_tensors
from cutaway.errors import CheckpointError, ConfigError, InputError
from cutaway.tasks.experiments import Experiment
from tests.analysis.models import BUILT, CHECKPOINTS, noise_image, small


def drawn(width: int, count: int = 40, seed: int = 0, **options) -> SAE:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    return SAE(normal(width, count), normal(count), normal(count, width), normal(width), **options)


VARIANTS = {
    "standard": {},
    "bias kept": {"apply_b_dec_to_input": False},
    "jumprelu": {"architecture": "jumprelu", "threshold": torch.linspace(0, 4, 40)},
    "topk": {"architecture": "topk", "k": 5},
    "topk by norm": {"architecture": "topk", "k": 5, "rescale_acts_by_decoder_norm": True},
    "rescaled": {"normalize_activations": "constant_norm_rescale"},
    "layer norm": {"normalize_activations": "layer_norm"},
    "scaled": {"scaling_factor": torch.linspace(0.5, 2, 40)},
}


def by_hand(d: SAE, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations and reconstruction of one row, feature by feature."""
    y, spread, middle = x, 1.0, 0.0
    if d.normalize_activations == "constant_norm_rescale":
        spread = float(x.norm()) / len(x) ** 0.5
        y = x / spread
    if d.normalize_activations == "layer_norm":
        middle, spread = float(x.mean()), float(x.std())
        y = (x - middle) / (spread + 1e-5)
    y = y - d.b_dec if d.apply_b_dec_to_input else y
    before = [float(y @ d.W_enc[:, f] + d.b_enc[f]) for f in range(d.d_sae)]
    if d.rescale_acts_by_decoder_norm:
        before = [b * float(d.W_dec[f].norm()) for f, b in enumerate(before)]
    kept = sorted(range(d.d_sae), key=lambda f: -before[f])[: d.k or d.d_sae]
    result = torch.zeros(d.d_sae)
    for f in kept:
        if before[f] > (0 if d.threshold is None else max(0.0, float(d.threshold[f]))):
            result[f] = before[f]
    weight = result if d.scaling_factor is None else result * d.scaling_factor
    weight = weight / d.W_dec.norm(dim=-1) if d.rescale_acts_by_decoder_norm else weight
    return result, (sum(w * d.W_dec[f] for f, w in enumerate(weight)) + d.b_dec) * spread + middle


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_is_what_its_definition_says(variant, tmp_path) -> None:
    d = drawn(12, **VARIANTS[variant])
    loaded = SAE.load(d.save(tmp_path / "sae"))
    x = torch.randn(6, 12) * 3
    for row, active, rebuilt in zip(x, loaded.encode(x), loaded.reconstruct(x), strict=True):
        expected, whole = by_hand(d, row)
        assert torch.allclose(active, expected, atol=1e-4)
        assert torch.allclose(rebuilt, whole, atol=1e-3)
    assert 0 < float((loaded.encode(x) > 0).float().mean()) < 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_edit_that_changes_no_feature_changes_nothing(variant, dtype) -> None:
    d = drawn(12, **VARIANTS[variant])
    x = (torch.randn(6, 12) * 3).to(dtype)
    assert torch.equal(d.edited(x, {}), x)
    assert torch.equal(d.edited(x, {3: lambda active: active}), x)
    changed = d.edited(x.float(), {3: 5.0})
    error = x.float() - d.reconstruct(x)
    active = d.encode(x)
    active[:, 3] = 5.0
    assert torch.allclose(changed, d.decode(active, x) + error, atol=1e-3)
    assert not torch.equal(changed, x.float())


VALUES = ("layers.1.layer_output", "vision.image_features", "vision.layers.1.layer_output", "projector.input")


@pytest.mark.parametrize("family", BUILT)
@pytest.mark.parametrize("value", VALUES)
def test_a_splice_without_a_change_is_exact_and_with_one_it_lands(family, value) -> None:
    model = small(family)
    inputs = question(model, "What color?", images=[noise_image(0, (64, 64))])
    width = Site.one(model, value).matrix(model.run(inputs, read=[value])[value]).shape[1]
    d = drawn(width)
    plain = model(inputs)
    same = model.run(inputs, edit=feature_edit(model, inputs, d, value, {}, "image")).result
    assert torch.equal(same, plain)
    edit = feature_edit(model, inputs, d, value, {7: 50.0}, "image")
    assert not torch.allclose(model.run(inputs, edit=edit).result, plain, atol=1e-3)
    active = feature_activations(model, inputs, d, value, "image")
    assert active.shape[1] == 40
    moved = model.run(inputs, read=[value], edit=edit)[value]
    site = Site.one(model, value)
    rows = site.matrix(moved)[site.rows(moved, inputs, (inputs.mm_token_type_ids[0] > 0).nonzero()[:, 0])]
    before = model.run(inputs, read=[value])[value]
    rows_before = site.matrix(before)[site.rows(before, inputs, (inputs.mm_token_type_ids[0] > 0).nonzero()[:, 0])]
    expected = rows_before + (50 - active[:, 7:8]) * d.W_dec[7]
    assert torch.allclose(rows, expected, atol=1e-2)


def cornered(number: int) -> Image.Image:
    """Noise with one bright square, at a place that depends on the number."""
    noise = noise_image(number, (128, 128)).point(lambda v: v // 8)
    left, top = 64 * (number % 2), 64 * (number // 2 % 2)
    noise.paste((255, 255, 255), (left, top, left + 64, top + 64))
    return noise


@pytest.mark.parametrize("family", BUILT)
@pytest.mark.parametrize("value", ["vision.patch_embeddings", "layers.0.input"])
def test_the_planted_feature_finds_its_region(family, value) -> None:
    """The one feature reads, by construction, the difference between bright rows and dark ones."""
    model = small(family)
    prompts = [question(model, "What?", images=[cornered(n)]) for n in range(4)]
    site = Site.one(model, value)
    bright, dark = [], []
    for n, inputs in enumerate(prompts):
        result = model.run(inputs, read=[value])[value]
        for corner in range(4):
            left, top = 64 * (corner % 2), 64 * (corner // 2)
            at = inputs.geometry.select(box=(left + 1, top + 1, left + 63, top + 63)).mask[0].nonzero()[:, 0]
            rows = site.matrix(result)[site.rows(result, inputs, at)].float()
            (bright if corner == n else dark).append(rows.mean(0))
    way = torch.stack(bright).mean(0) - torch.stack(dark).mean(0)
    way, width = way / way.norm(), len(way)
    middle = (torch.stack(bright).mean(0) + torch.stack(dark).mean(0)) / 2
    d = drawn(width, 3)
    encoder = torch.zeros(width, 3)
    encoder[:, 1] = way
    d = replace(d, W_enc=encoder, b_enc=torch.tensor([-1.0, 0, -1]), b_dec=middle)
    result = feature_regions(model, prompts, sae=d, value=value, count=2, top=4)
    assert result.largest.names("feature") == ("1",), "the two others never fire"
    assert len(result.regions) == 4
    for position in result.regions:
        left, top, right, bottom = position["box"]
        middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
        n = position["image"]
        assert 64 * (n % 2) <= middle_x <= 64 * (n % 2) + 64
        assert 64 * (n // 2) <= middle_y <= 64 * (n // 2) + 64
        cells = result.maps[f"1, {position['rank']}"]
        assert cells.at(row=position["row"], column=position["column"]) == pytest.approx(position["activation"])
    assert 0 < result.firing.values[0] < 0.6


def test_what_a_dictionary_keeps_is_measured(tmp_path) -> None:
    model = small("qwen3_vl")
    prompts = [question(model, "What?", images=[noise_image(n, (64, 64))]) for n in range(3)]
    value, width = "vision.image_features", model.hidden_size
    both = torch.cat((torch.eye(width), -torch.eye(width)), 1)
    perfect = SAE(both, torch.zeros(2 * width), both.T.contiguous(), torch.zeros(width))
    result = feature_regions(model, prompts, sae=perfect, value=value, loss=True, store=tmp_path / "kept")
    assert result.explained_variance == pytest.approx(1, abs=1e-5)
    assert result.loss_recovered == pytest.approx(1, abs=1e-4)
    assert result.l0 == pytest.approx(width, abs=0.01)
    assert result.alive > 0.9
    again = feature_regions(model, prompts, sae=perfect, value=value, loss=True, store=tmp_path / "kept")
    assert again.to_json() == result.to_json()
    nothing = replace(perfect, W_dec=torch.zeros(2 * width, width))
    empty = feature_regions(model, prompts, sae=nothing, value=value, loss=True)
    assert empty.loss_recovered == pytest.approx(0, abs=1e-5)
    assert empty.explained_variance <= 0.0
    with pytest.raises(InputError, match="belongs to one harvest"):
        feature_regions(model, prompts, sae=nothing, value=value, loss=True, store=tmp_path / "kept")
    assert "explained variance 1.000" in result.summary()
    assert result.plot(backgrounds=[noise_image(n, (64, 64)) for n in range(3)]) is not None
    assert Result.from_json(json.loads(json.dumps(result.to_json()))).to_json() == result.to_json()


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"architecture": "gated"}, ConfigError, "the architecture 'gated'"),
        ({"activation_fn_str": "tanh-relu"}, ConfigError, "the activation 'tanh-relu'"),
        ({"normalize_activations": "expected_average_only_in"}, ConfigError, "scale="),
        ({"normalize_activations": "batch"}, ConfigError, "the normalisation 'batch'"),
        ({"reshape_activations": "other"}, ConfigError, "the reshaping 'other'"),
        ({"architecture": "topk"}, ConfigError, "must have `k`"),
        ({"architecture": "jumprelu"}, CheckpointError, "must hold W_dec, W_enc, b_dec, b_enc, threshold"),
        ({"finetuning_scaling_factor": True}, CheckpointError, "scaling_factor"),
        ({"d_in": 5}, CheckpointError, "says d_in"),
    ],
)
def test_what_is_not_honoured_is_refused(config, error, message, tmp_path) -> None:
    folder = drawn(12).save(tmp_path / "sae")
    (folder / CONFIG).write_text(json.dumps(json.loads((folder / CONFIG).read_text()) | config))
    with pytest.raises(error, match=message):
        SAE.load(folder)


def test_files_of_older_releases_are_read(tmp_path) -> None:
    """Top-k as an activation of the standard architecture, scaling factors of one, inputs scaled by an average."""
    folder = drawn(12).save(tmp_path / "sae")
    tensors, _ = load_tensors(folder / WEIGHTS)
    save_tensors(folder / WEIGHTS, {**tensors, "scaling_factor": torch.ones(40)}, {})
    old = {"d_in": 12, "d_sae": 40, "activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}, "hook_name": "x"}
    old |= {"apply_b_dec_to_input": False, "normalize_activations": "expected_average_only_in"}
    (folder / CONFIG).write_text(json.dumps(old))
    result, x = SAE.load(folder, scale=0.5), torch.randn(4, 12)
    assert (result.architecture, result.k, result.apply_b_dec_to_input) == ("topk", 3, False)
    plain = replace(drawn(12), architecture="topk", k=3, apply_b_dec_to_input=False)
    assert torch.allclose(result.encode(x), plain.encode(0.5 * x), atol=1e-5)
    assert torch.allclose(result.reconstruct(x), plain.reconstruct(0.5 * x) / 0.5, atol=1e-4)


def test_faults_of_a_call_are_said(tmp_path) -> None:
    model = small("qwen3_vl")
    inputs = question(model, "What?", images=[noise_image(0, (64, 64))])
    with pytest.raises(CheckpointError, match="no cfg"):
        SAE.load(tmp_path)
    with pytest.raises(InputError, match=r"reads tensors \[… 9\]; got \[\d+, 32\]"):
        feature_activations(model, inputs, drawn(9), "vision.image_features")
    with pytest.raises(InputError, match="from 0 to 39; got 40"):
        feature_edit(model, inputs, drawn(32), "vision.image_features", {40: 1.0})
    with pytest.raises(InputError, match="One value is wanted"):
        feature_activations(model, inputs, drawn(32), "layers.*.layer_output")
    with pytest.raises(InputError, match="from 0 to 39; got 99"):
        feature_regions(model, [inputs], sae=drawn(32), value="vision.image_features", features=[99])


def test_an_experiment_repeats_the_regions(tmp_path) -> None:
    for n in range(2):
        noise_image(n, (64, 64)).save(tmp_path / f"{n}.png")
    drawn(32).save(tmp_path / "sae")
    content = {
        "technique": "feature_regions", "model": str(CHECKPOINTS / "qwen3_vl"),
        "prompts": [{"question": "What?", "images": [f"{n}.png"]} for n in range(2)],
        "parameters": {"sae": str(tmp_path / "sae"), "value": "vision.image_features", "features": [3, 5]},
    }  # fmt: skip
    (tmp_path / "e.json").write_text(json.dumps(content))
    first, second = (Experiment.read(tmp_path / "e.json").run().to_json() for _ in range(2))
    assert first == second
    assert first["largest"]["labels"]["feature"] == ["3", "5"]


def test_saving_over_an_sae_leaves_both_old_files_when_the_disk_is_full(tmp_path, monkeypatch) -> None:
    drawn(6).save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)  # the second of the two files
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        drawn(6, seed=1).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
