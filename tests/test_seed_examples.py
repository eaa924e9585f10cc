"""The contract of names, reads and edits, example by example: each runs as it is written, and what it claims holds.

A test is named after the heading it comes from. `prompt` asks about as many images as the example gives.
"""

from __future__ import annotations

import pytest
import torch

from cutaway.errors import NotReachedError, OutOfOrderError, Unavailable


@pytest.fixture
def model(nano):
    return nano


@pytest.fixture
def prompt(model):
    return model.prompt("What color is the square?", images=1)


@pytest.fixture
def two(model):
    """The prompt of the examples that give two images."""
    return model.prompt("What color is the square?", images=2)


class TestTheBlockInOrder:
    def test_the_contribution_identity_is_the_plain_sum(self, model) -> None:
        prompt = model.prompt("What color is the square?")
        with model.trace(prompt):
            x = model.layers[1].input.save()
            attn = model.layers[1].self_attn.attention_output.save()
            mlp = model.layers[1].mlp.mlp_output.save()
            out = model.layers[1].layer_output.save()

        torch.testing.assert_close(x + attn + mlp, out)
        assert torch.equal(x + attn + mlp, out)

    def test_the_block_returns_a_tensor(self, model) -> None:
        with model.trace(model.prompt("What?")):
            out = model.layers[1].output.save()
        assert type(out) is torch.Tensor
        assert out.dim() == 3


class TestAfterTheFirstBlocksLayerOutputIsNotWhatTheNextBlockReads:
    def test_deepstack_is_added_at_the_image_positions(self, model, prompt, red) -> None:
        with model.trace(prompt, images=[red]):
            mask = model.vision.image_token_mask.save()
            out = model.layers[0].layer_output.save()
            added = model.layers[0].deepstack_output.save()
            entering = model.layers[1].input.save()

        assert torch.equal(entering[mask], out[mask] + added)
        assert torch.equal(entering[~mask], out[~mask])

    @pytest.mark.parametrize("block", [0, 1, 2])
    def test_a_patch_from_layer_output_into_the_next_input_drops_it(self, model, prompt, red, block: int) -> None:
        with model.trace(prompt, images=[red]):
            model.layers[block + 1].input[:] = model.layers[block].layer_output.clone()
            patched = model.logits.save()
        with model.trace(prompt, images=[red]):
            model.layers[block].deepstack_output[:] = 0
            zeroed = model.logits.save()
        assert torch.equal(patched, zeroed)

    def test_a_text_prompt_makes_no_deepstack_call(self, model) -> None:
        with model.trace(model.prompt("What color is the square?")), pytest.raises(NotReachedError):
            model.layers[0].deepstack_output.save()

    def test_blocks_beyond_the_taps_have_none(self, model, prompt, red) -> None:
        with model.trace(prompt, images=[red]), pytest.raises(Unavailable, match="layers 0 to 2"):
            model.layers[3].deepstack_output.save()


class TestQueriesAndKeys:
    def test_they_are_read_after_norm_and_rotary(self, model) -> None:
        """A rotation keeps a pair's length, so a query's length is that of its normed projection."""
        prompt = model.prompt("What color is the square?")
        with model.trace(prompt):
            normed = model.layers[0].self_attn.q_norm.output.save()
            queries = model.layers[0].self_attn.attention_queries.save()
            keys = model.layers[0].self_attn.attention_keys.save()
        assert queries.shape[1:] == (model.num_heads, normed.shape[1], model.head_dim)
        assert keys.shape[1] == model.num_kv_heads
        torch.testing.assert_close(queries.norm(dim=-1), normed.transpose(1, 2).norm(dim=-1))
        assert not torch.allclose(queries[:, :, -1], normed.transpose(1, 2)[:, :, -1])

    def test_positions_of_an_image(self, model, prompt, red) -> None:
        """Its tokens take one time position; rows and columns count from there; the text goes on from the largest."""
        with model.trace(prompt, images=[red]):
            mask = model.vision.image_token_mask.save()
            positions = model.position_ids.save()
        time, height, width = (positions[axis][mask] for axis in range(3))
        start = int(time[0])
        assert time.tolist() == [start] * 4
        assert height.tolist() == [start, start, start + 1, start + 1]
        assert width.tolist() == [start, start + 1, start, start + 1]
        after = positions[:, 0, int(mask[0].nonzero().max()) + 1]
        assert after.tolist() == [start + 2] * 3
        assert int(after[0]) < int(mask[0].nonzero().max()) + 1
        text = positions[:, 0, : int(mask[0].nonzero().min())]
        assert torch.equal(text, torch.arange(text.shape[1]).expand(3, -1))


class TestLoading:
    def test_text_generation_has_no_vision_values(self) -> None:
        import cutaway

        model = cutaway.load("nano", task="text-generation")
        prompt = model.prompt("What color is the square?")
        with model.trace(prompt):
            for read in (
                lambda: model.vision.image_features,
                lambda: model.vision.image_token_mask,
                lambda: model.vision.layers[0].layer_output,
                lambda: model.projector.output,
                lambda: model.layers[0].deepstack_output,
            ):
                with pytest.raises(Unavailable, match="text-generation"):
                    read()
            assert model.logits.shape[-1] == model.vocab_size

    def test_the_wrapper_has_both_trees(self, model) -> None:
        assert model.vision is model.visual is model.root.model.visual
        assert model.layers is model.language_model.layers
        assert model.projector is model.visual.merger


class TestEveryImageInOneRow:
    def test_the_row_is_split_by_the_grids(self, model, two, red, wide) -> None:
        prompt = two
        inputs = model.processor(text=prompt, images=[red, wide], return_tensors="pt")
        sizes = inputs["image_grid_thw"].prod(-1).tolist()  # patches per image
        with model.trace(prompt, images=[red, wide]):
            patches = model.vision.layers[1].layer_output.save()
        per_image = patches[0].split(sizes)  # one [t*h*w, vision_hidden_size] each

        assert [p.shape[0] for p in per_image] == sizes == [16, 24]
        with model.trace(model.prompt("What?", images=1), images=[wide]):
            alone = model.vision.layers[1].layer_output.save()
        torch.testing.assert_close(per_image[1], alone[0], rtol=0, atol=1e-5)

    def test_stream_values_have_a_leading_axis_and_input_and_output_are_native(self, model, two, red, wide) -> None:
        width = model.vision.vision_hidden_size
        with model.trace(two, images=[red, wide]):
            embedded = model.vision.patch_embeddings.save()
            entering = model.vision.layers[0].input.save()
            attention = model.vision.layers[0].self_attn.attention_output.save()
            mlp = model.vision.layers[0].mlp.mlp_output.save()
            out = model.vision.layers[0].layer_output.save()
            native = model.vision.layers[0].output.save()
            tower = model.vision.tower_output.save()
        assert embedded.shape == attention.shape == mlp.shape == out.shape == tower.shape == (1, 40, width)
        assert entering.shape == native.shape == (40, width)
        assert torch.equal(entering + attention + mlp, out)  # across the two by broadcasting
        assert out.data_ptr() == native.data_ptr()

    def test_an_edit_in_place_lands(self, model, two, red, wide) -> None:
        with model.trace(two, images=[red, wide]):
            model.vision.layers[1].layer_output[:] = 0
            entering = model.vision.layers[2].input.save()
        assert not entering.any()

    def test_patches_are_in_merge_block_order(self, model, two, red, wide) -> None:
        """Four consecutive rows are the neighbours that one image token is made of."""
        with model.trace(two, images=[red, wide]):
            model.projector.input[4 * 5 : 4 * 5 + 4] += 1.0
            changed = model.vision.image_features.save()
        with model.trace(two, images=[red, wide]):
            plain = model.vision.image_features.save()
        moved = (changed - plain).abs().amax(-1) > 0
        assert moved.nonzero().flatten().tolist() == [5]


class TestTheAttentionRunsOncePerImage:
    def test_a_pattern_per_image_is_a_softmax_over_each_slice(self, model, two, red, wide) -> None:
        prompt = two
        attn = model.vision.layers[1].self_attn
        with model.trace(prompt, images=[red, wide]):
            cu = attn.inputs[1]["cu_seqlens"].save()  # read first: the module's input
            q = attn.attention_queries.save()
            k = attn.attention_keys.save()

        patterns = []
        for a, b in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
            scores = q[0, :, a:b] @ k[0, :, a:b].transpose(-1, -2) * model.vision.head_dim**-0.5
            patterns.append(scores.softmax(-1))  # [heads, patches_j, patches_j]

        assert cu.tolist() == [0, 16, 40]
        with model.trace(prompt, images=[red, wide]):
            v = attn.attention_values.save()
            own = attn.attention_patterns.save()
            heads = attn.attention_head_outputs.save()
        for ours, theirs in zip(own, patterns, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
        for pattern, a, b in zip(own, cu[:-1].tolist(), cu[1:].tolist(), strict=True):
            assert torch.equal((pattern @ v[0, :, a:b]).transpose(0, 1), heads[0, a:b])

    @pytest.mark.parametrize("name", ["attention_scores", "attention_probabilities"])
    def test_no_one_tensor_is_the_blocks_pattern(self, model, two, red, wide, name: str) -> None:
        with (
            model.trace(two, images=[red, wide]),
            pytest.raises(Unavailable, match="no one tensor is the block's pattern"),
        ):
            getattr(model.vision.layers[1].self_attn, name)

    def test_shapes_of_the_whole_row(self, model, two, red, wide) -> None:
        attn, vision = model.vision.layers[1].self_attn, model.vision
        with model.trace(two, images=[red, wide]):
            row = [attn.attention_queries.save(), attn.attention_keys.save(), attn.attention_values.save()]
            heads = attn.attention_head_outputs.save()
        assert all(t.shape == (1, vision.num_heads, 40, vision.head_dim) for t in row)
        assert heads.shape == (1, 40, vision.num_heads, vision.head_dim)


class TestTheMergerIsInsideTheVisionEncoder:
    def test_it_reads_the_last_blocks_stream(self, model, two, red, wide) -> None:
        with model.trace(two, images=[red, wide]):
            last = model.vision.layers[-1].layer_output.save()
            fed = model.projector.input.save()
            out = model.projector.output.save()
            tower = model.vision.tower_output.save()
            features = model.vision.image_features.save()
        assert torch.equal(fed, tower[0])
        assert torch.equal(fed, last[0])
        assert torch.equal(out, features)

    def test_tower_output_is_reached_after_it(self, model, two, red, wide) -> None:
        with model.trace(two, images=[red, wide]):
            model.vision.tower_output.save()
            with pytest.raises(OutOfOrderError):
                model.projector.output.save()


class TestSizesAndNoImageSize:
    def test_sizes(self, model) -> None:
        vision, config = model.vision, model.config.vision
        assert vision.vision_hidden_size == vision.hidden_size == config.hidden_size
        assert vision.num_heads * vision.head_dim == vision.vision_hidden_size
        assert vision.intermediate_size == config.intermediate_size
        assert (vision.patch_size, vision.spatial_merge_size, vision.window_size) == (16, 2, None)
        with pytest.raises(Unavailable, match="own grid"):
            _ = vision.image_size


class TestTheMergerFoldsFourPatchesIntoOneImageToken:
    def test_one_image_token_for_each_block_of_patches(self, model, two, red, wide) -> None:
        prompt = two
        with model.trace(prompt, images=[red, wide]):
            mask = model.vision.image_token_mask.save()
            fed = model.projector.input.save()  # [patches, vision_hidden_size]
            features = model.vision.image_features.save()
            first = model.layers[0].input.save()

        assert fed.shape[0] // 4 == mask.sum()
        assert torch.equal(first[mask], features)

    def test_an_image_token_covers_32_by_32_pixels(self, model) -> None:
        """A 448 x 448 image and a 320 x 256 one are 1104 patches in one row and 276 image tokens."""
        from PIL import Image

        inputs = model.processor(
            text=model.prompt("Compare.", images=2),
            images=[Image.new("RGB", (448, 448)), Image.new("RGB", (320, 256))],
            max_pixels=1 << 20,
            return_tensors="pt",
        )
        assert inputs["pixel_values"].shape[0] == 1104
        assert int((inputs["mm_token_type_ids"] == 1).sum()) == 276


class TestALearnedPositionEmbeddingFollowsPatchEmbed:
    def test_the_first_blocks_input_is_not_patch_embeddings(self, model, two, red, wide) -> None:
        with model.trace(two, images=[red, wide]):
            embedded = model.vision.patch_embeddings.save()
            entering = model.vision.layers[0].input.save()
        learned = entering - embedded[0]
        assert learned.abs().max() > 0
        with model.trace(two, images=[wide, red]):
            embedded = model.vision.patch_embeddings.save()
            entering = model.vision.layers[0].input.save()
        torch.testing.assert_close((entering - embedded[0])[24:], learned[:16])  # the grid decides, not the image


class TestDeepStackThreeMoreMergers:
    def test_their_outputs_reach_the_text_model_as_they_are(self, model, prompt, red) -> None:
        with model.trace(prompt, images=[red]):
            tapped = model.vision.deepstack_merger_list[0].output.save()
            added = model.layers[0].deepstack_output.save()

        assert torch.equal(added, tapped)

    def test_ablating_the_image_takes_all_routes(self, model, prompt, red, wide) -> None:
        from PIL import Image

        other = Image.new("RGB", red.size, "green")
        ablated = []
        for image in (red, other):
            with model.trace(prompt, images=[image]):
                model.vision.image_features[:] = 0
                for k in range(3):
                    model.layers[k].deepstack_output[:] = 0
                ablated.append(model.logits.save())
        assert torch.equal(*ablated)

        with model.trace(prompt, images=[red]):
            model.vision.image_features[:] = 0
            alone = model.logits.save()
        assert not torch.equal(alone, ablated[0])  # image_features is not the only way in


class TestReadTheVisionValuesInTheForwardsOrder:
    def test_the_order_that_works(self, model, prompt, red) -> None:
        with model.trace(prompt, images=[red]):
            for index in range(model.vision.num_layers):
                model.vision.layers[index].layer_output.save()
                if index in model.config.vision.deepstack_indexes:
                    k = model.config.vision.deepstack_indexes.index(index)
                    model.vision.deepstack_merger_list[k].output.save()
            model.projector.input.save()
            model.projector.output.save()
            model.vision.tower_output.save()
            model.vision.image_features.save()
            for k in range(3):
                model.layers[k].layer_output.save()
                model.layers[k].deepstack_output.save()
                model.layers[k + 1].input.save()
            model.logits.save()

    @pytest.mark.parametrize(
        ("first", "then"),
        [
            ("vision.layers.2.layer_output", "vision.deepstack_merger_list.0.output"),
            ("vision.image_features", "vision.tower_output"),
            ("layers.0.layer_output", "vision.image_features"),
            ("layers.1.input", "layers.0.deepstack_output"),
            ("layers.0.deepstack_output", "layers.0.layer_output"),
        ],
    )
    def test_a_read_out_of_order_raises(self, model, prompt, red, first: str, then: str) -> None:
        def read(address: str):
            part = model
            for name in address.split("."):
                part = part[int(name)] if name.isdigit() else getattr(part, name)
            return part

        with model.trace(prompt, images=[red]):
            read(first)
            with pytest.raises(OutOfOrderError, match=then.rsplit(".", 1)[1]):
                read(then)
