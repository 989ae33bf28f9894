"""Tiny random models of several vision families, as their folders look."""

import json
from pathlib import Path
from typing import Any

import numpy as np

SOFT = {"qwen2_5_vl": "<|image_pad|>", "qwen3_vl": "<|image_pad|>", "gemma3": "<image_soft_token>"}
"""What a picture's tokens are, where it is not <image>."""
SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<image>",
    "<start_of_image>",
    "<image_soft_token>",
    "<end_of_image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
)
MARKS = {"qwen": "<|vision_start|><|image_pad|><|vision_end|>", "gemma3": "<start_of_image>", "": "<image>"}
QWEN_TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
}
DEPTH = 2
"""Layers of each vision tower."""
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "num_hidden_layers": DEPTH,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "patch_size": 14,
    "image_size": 56,
    "num_channels": 3,
}
QWEN_EYES = {
    "depth": DEPTH,
    "hidden_size": 32,
    "intermediate_size": 64,
    "out_hidden_size": 64,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "in_chans": 3,
    "window_size": 56,
    "fullatt_block_indexes": [1],
}
QWEN_PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 56 * 56,
    "max_pixels": 28 * 28 * 16,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl",
        **QWEN_TEXT,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "vision_config": {"model_type": "qwen2_5_vl", **QWEN_EYES},
    },
    "qwen3_vl": {
        "text_config": {
            "model_type": "qwen3_vl_text",
            **QWEN_TEXT,
            "head_dim": 16,
            "rope_scaling": {"type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True},
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            **QWEN_EYES,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
    },
    "gemma3": {
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 64,
            "sliding_window_pattern": 2,
            "mm_tokens_per_image": 4,
        },
        "vision_config": SIGLIP,
        "hidden_size": 64,
        "mm_tokens_per_image": 4,
    },
    "idefics3": {
        "text_config": {"model_type": "llama", **QWEN_TEXT},
        "vision_config": {**SIGLIP, "model_type": "idefics3"},
        "scale_factor": 2,
    },
    "llava": {
        "text_config": {"model_type": "llama", **QWEN_TEXT},
        "vision_config": {**SIGLIP, "model_type": "clip_vision_model", "projection_dim": 32},
        "vision_feature_select_strategy": "full",
        "vision_feature_layer": -1,
    },
}
SIGLIP_PIXELS = {"size": {"height": 56, "width": 56}, "do_resize": True}
PIXELS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {**QWEN_PIXELS, "processor_class": "Qwen2_5_VLProcessor"},
    "qwen3_vl": {**QWEN_PIXELS, "processor_class": "Qwen3VLProcessor"},
    "gemma3": {
        **SIGLIP_PIXELS,
        "image_processor_type": "Gemma3ImageProcessor",
        "processor_class": "Gemma3Processor",
        "image_seq_length": 4,
    },
    "idefics3": {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "size": {"longest_edge": 56},
        "max_image_size": {"longest_edge": 56},
        "do_image_splitting": False,
        "image_seq_len": 4,
    },
    "llava": {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "size": {"shortest_edge": 56},
        "crop_size": {"height": 56, "width": 56},
        "patch_size": 14,
        "vision_feature_select_strategy": "full",
    },
}


def build(folder: Path, family: str) -> Path:
    """Write a folder with a random model, and return it."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map

    from inferd_server.engine.vision_upstream import mlx_vlm

    folder.mkdir(parents=True)
    vocabulary_size = _write_tokenizer(folder, family)
    token = SPECIALS.index
    soft = SOFT.get(family, "<image>")
    config = json.loads(json.dumps(FAMILIES[family]))
    config |= {"model_type": family, "vocab_size": vocabulary_size, "torch_dtype": "float32"}
    config |= {"image_token_id": token(soft), "image_token_index": token(soft), "eos_token_id": 2, "pad_token_id": 0}
    config |= {"video_token_id": token("<|video_pad|>"), "video_token_index": token("<|video_pad|>")}
    config |= {"vision_start_token_id": token("<|vision_start|>"), "vision_end_token_id": token("<|vision_end|>")}
    config |= {"boi_token_index": token("<start_of_image>"), "eoi_token_index": token("<end_of_image>")}
    if "text_config" in config:
        config["text_config"]["vocab_size"] = vocabulary_size
    (folder / "config.json").write_text(json.dumps(config))
    pixels = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_rescale": True, "rescale_factor": 1 / 255}
    pixels |= {"do_normalize": True, "do_convert_rgb": True, **PIXELS[family]}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    lengths = {"image_seq_length": 4, "image_seq_len": 4, "patch_size": 14, "num_additional_image_tokens": 1}
    lengths |= {"vision_feature_select_strategy": "full", "processor_class": pixels["processor_class"]}
    (folder / "processor_config.json").write_text(json.dumps(lengths))
    classes, _ = mlx_vlm.get_model_and_args(config)
    config = {"text_config": {}, **mlx_vlm.load_config(folder)}
    parts = classes.ModelConfig.from_dict(config)
    parts = mlx_vlm.update_module_configs(parts, classes, config, ["text", "vision"])
    mx.random.seed(0)
    model = classes.Model(parts)
    scale = tree_map(lambda x: 1.0 / np.sqrt(x.shape[-1]), model.parameters())
    drawn = tree_map(lambda x, s: mx.random.normal(x.shape) * s if x.ndim > 1 else x, model.parameters(), scale)
    model.update(drawn)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    return folder


def _write_tokenizer(folder: Path, family: str) -> int:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(SPECIALS)}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[character] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    mark = next(mark for name, mark in MARKS.items() if name in family)
    template = (
        "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{%- if m['content'] is string -%}{{ m['content'] }}{%- else -%}{%- for c in m['content'] -%}"
        f"{{%- if c['type'] == 'image' -%}}{{{{ '{mark}' }}}}"
        "{%- else -%}{{ c['text'] }}{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<|im_end|>' + '\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "chat_template": template,
        "extra_special_tokens": {
            "image_token": SOFT.get(family, "<image>"),
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(vocabulary)
