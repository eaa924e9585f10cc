"""Every public function and class of the analyses: ``from cutaway.analysis import patch, question``.

`dir(cutaway.analysis)` lists them, and docs/analysis/README.md says in a sentence what each does. A name is imported
from its module when it is first used, so that importing this package is quick and loads no torch. The modules below it
are where the work is done; import from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.analysis.attention.rollout import (
        AttentionRollout as AttentionRollout,
    )
    from cutaway.analysis.attention.rollout import (
        attention_rollout as attention_rollout,
    )
    from cutaway.analysis.attention.text import (
        AttentionMap as AttentionMap,
    )
    from cutaway.analysis.attention.text import (
        attention_map as attention_map,
    )
    from cutaway.analysis.attention.vision import (
        VisionAttention as VisionAttention,
    )
    from cutaway.analysis.attention.vision import (
        vision_attention as vision_attention,
    )
    from cutaway.analysis.attribution.direct_logit import (
        LogitAttribution as LogitAttribution,
    )
    from cutaway.analysis.attribution.direct_logit import (
        direct_logit_attribution as direct_logit_attribution,
    )
    from cutaway.analysis.attribution.input_gradients import (
        InputAttribution as InputAttribution,
    )
    from cutaway.analysis.attribution.input_gradients import (
        input_attribution as input_attribution,
    )
    from cutaway.analysis.attribution.residual_decomposition import (
        ResidualDecomposition as ResidualDecomposition,
    )
    from cutaway.analysis.attribution.residual_decomposition import (
        ResidualTerm as ResidualTerm,
    )
    from cutaway.analysis.attribution.residual_decomposition import (
        decompose_residual as decompose_residual,
    )
    from cutaway.analysis.common.activations import (
        harvest as harvest,
    )
    from cutaway.analysis.common.metrics import (
        Metric as Metric,
    )
    from cutaway.analysis.common.metrics import (
        answer_logits as answer_logits,
    )
    from cutaway.analysis.common.metrics import (
        custom_metric as custom_metric,
    )
    from cutaway.analysis.common.metrics import (
        kl_divergence as kl_divergence,
    )
    from cutaway.analysis.common.metrics import (
        log_probability as log_probability,
    )
    from cutaway.analysis.common.metrics import (
        logit_difference as logit_difference,
    )
    from cutaway.analysis.common.metrics import (
        measure as measure,
    )
    from cutaway.analysis.common.metrics import (
        metric_from_spec as metric_from_spec,
    )
    from cutaway.analysis.common.metrics import (
        probability as probability,
    )
    from cutaway.analysis.common.prompts import (
        Alignment as Alignment,
    )
    from cutaway.analysis.common.prompts import (
        Pair as Pair,
    )
    from cutaway.analysis.common.prompts import (
        align as align,
    )
    from cutaway.analysis.common.prompts import (
        prompt_from_spec as prompt_from_spec,
    )
    from cutaway.analysis.common.prompts import (
        question as question,
    )
    from cutaway.analysis.common.result import (
        Array as Array,
    )
    from cutaway.analysis.common.result import (
        Result as Result,
    )
    from cutaway.analysis.common.statistics import (
        correlation as correlation,
    )
    from cutaway.analysis.common.statistics import (
        mean_interval as mean_interval,
    )
    from cutaway.analysis.common.token_selection import (
        PositionGroups as PositionGroups,
    )
    from cutaway.analysis.common.token_selection import (
        SelectedTokens as SelectedTokens,
    )
    from cutaway.analysis.common.token_selection import (
        TokenSelection as TokenSelection,
    )
    from cutaway.analysis.common.token_selection import (
        image_regions as image_regions,
    )
    from cutaway.analysis.common.token_selection import (
        media_tokens as media_tokens,
    )
    from cutaway.analysis.common.token_selection import (
        position_groups as position_groups,
    )
    from cutaway.analysis.common.token_selection import (
        region_tokens as region_tokens,
    )
    from cutaway.analysis.common.token_selection import (
        select_tokens as select_tokens,
    )
    from cutaway.analysis.common.token_selection import (
        single_tokens as single_tokens,
    )
    from cutaway.analysis.common.token_selection import (
        token_groups as token_groups,
    )
    from cutaway.analysis.common.token_selection import (
        token_labels as token_labels,
    )
    from cutaway.analysis.common.token_selection import (
        video_frames as video_frames,
    )
    from cutaway.analysis.common.token_selection import (
        word_tokens as word_tokens,
    )
    from cutaway.analysis.intervention.ablation import (
        Ablation as Ablation,
    )
    from cutaway.analysis.intervention.ablation import (
        ablate as ablate,
    )
    from cutaway.analysis.intervention.attention_knockout import (
        Knockout as Knockout,
    )
    from cutaway.analysis.intervention.attention_knockout import (
        attention_knockout as attention_knockout,
    )
    from cutaway.analysis.intervention.image_pathways import (
        Pathways as Pathways,
    )
    from cutaway.analysis.intervention.image_pathways import (
        image_pathways as image_pathways,
    )
    from cutaway.analysis.intervention.patching import (
        Patching as Patching,
    )
    from cutaway.analysis.intervention.patching import (
        patch as patch,
    )
    from cutaway.analysis.lens.logit_lens import (
        LogitLens as LogitLens,
    )
    from cutaway.analysis.lens.logit_lens import (
        logit_lens as logit_lens,
    )
    from cutaway.analysis.lens.nearest_tokens import (
        NearestTokens as NearestTokens,
    )
    from cutaway.analysis.lens.nearest_tokens import (
        nearest_tokens as nearest_tokens,
    )
    from cutaway.analysis.lens.residual_stream import (
        accumulated_residual as accumulated_residual,
    )
    from cutaway.analysis.lens.residual_stream import (
        unembed as unembed,
    )
    from cutaway.analysis.lens.tuned_lens import (
        TunedLens as TunedLens,
    )
    from cutaway.analysis.lens.tuned_lens import (
        train_tuned_lens as train_tuned_lens,
    )
    from cutaway.analysis.probing.linear import (
        LinearProbe as LinearProbe,
    )
    from cutaway.analysis.probing.probes import (
        Probing as Probing,
    )
    from cutaway.analysis.probing.probes import (
        probe as probe,
    )
    from cutaway.analysis.probing.probes import (
        train_probe as train_probe,
    )
    from cutaway.analysis.sae.regions import (
        FeatureRegions as FeatureRegions,
    )
    from cutaway.analysis.sae.regions import (
        feature_regions as feature_regions,
    )
    from cutaway.analysis.sae.sae import (
        SAE as SAE,
    )
    from cutaway.analysis.sae.sae import (
        feature_activations as feature_activations,
    )
    from cutaway.analysis.sae.sae import (
        feature_edit as feature_edit,
    )
    from cutaway.analysis.steering.sweep import (
        Steering as Steering,
    )
    from cutaway.analysis.steering.sweep import (
        steer as steer,
    )
    from cutaway.analysis.steering.vectors import (
        SteeringVectors as SteeringVectors,
    )
    from cutaway.analysis.steering.vectors import (
        contrast as contrast,
    )

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "Prompts and the tokens an analysis is about": {
        "common.prompts": (
            "Alignment",
            "Pair",
            "align",
            "prompt_from_spec",
            "question",
        ),
        "common.token_selection": (
            "PositionGroups",
            "SelectedTokens",
            "TokenSelection",
            "image_regions",
            "media_tokens",
            "position_groups",
            "region_tokens",
            "select_tokens",
            "single_tokens",
            "token_groups",
            "token_labels",
            "video_frames",
            "word_tokens",
        ),
    },
    "Metrics and statistics": {
        "common.metrics": (
            "Metric",
            "answer_logits",
            "custom_metric",
            "kl_divergence",
            "log_probability",
            "logit_difference",
            "measure",
            "metric_from_spec",
            "probability",
        ),
        "common.statistics": (
            "mean_interval",
            "correlation",
        ),
    },
    "Results": {
        "common.result": (
            "Array",
            "Result",
        ),
    },
    "Lenses": {
        "lens.logit_lens": (
            "LogitLens",
            "logit_lens",
        ),
        "lens.tuned_lens": (
            "TunedLens",
            "train_tuned_lens",
        ),
        "lens.nearest_tokens": (
            "NearestTokens",
            "nearest_tokens",
        ),
        "lens.residual_stream": (
            "accumulated_residual",
            "unembed",
        ),
    },
    "Attention": {
        "attention.text": (
            "AttentionMap",
            "attention_map",
        ),
        "attention.rollout": (
            "AttentionRollout",
            "attention_rollout",
        ),
        "attention.vision": (
            "VisionAttention",
            "vision_attention",
        ),
    },
    "Attribution": {
        "attribution.direct_logit": (
            "LogitAttribution",
            "direct_logit_attribution",
        ),
        "attribution.residual_decomposition": (
            "ResidualDecomposition",
            "ResidualTerm",
            "decompose_residual",
        ),
        "attribution.input_gradients": (
            "InputAttribution",
            "input_attribution",
        ),
    },
    "Interventions": {
        "intervention.patching": (
            "Patching",
            "patch",
        ),
        "intervention.ablation": (
            "Ablation",
            "ablate",
        ),
        "intervention.attention_knockout": (
            "Knockout",
            "attention_knockout",
        ),
        "intervention.image_pathways": (
            "Pathways",
            "image_pathways",
        ),
    },
    "Steering": {
        "steering.vectors": (
            "SteeringVectors",
            "contrast",
        ),
        "steering.sweep": (
            "Steering",
            "steer",
        ),
    },
    "Probes": {
        "common.activations": ("harvest",),
        "probing.probes": (
            "Probing",
            "probe",
            "train_probe",
        ),
        "probing.linear": ("LinearProbe",),
    },
    "Sparse autoencoders": {
        "sae.sae": (
            "SAE",
            "feature_activations",
            "feature_edit",
        ),
        "sae.regions": (
            "FeatureRegions",
            "feature_regions",
        ),
    },
}
"""The public names by subject and module."""

_HOMES = {name: module for modules in GROUPS.values() for module, names in modules.items() for name in names}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; `dir()` lists what it has.")
    result = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = result
    return result


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
