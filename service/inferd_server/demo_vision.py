"""The demo's vision model: a tiny Qwen2-VL that names colours, built and trained here in seconds, without a download.

It knows five colours and nothing else; what it shows is the way of an image through the server.
"""

import json
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

NAME = "colours"
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (255, 0, 0),
    "green": (0, 200, 0),
    "blue": (0, 0, 255),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
}
"""What it was trained to name, and what each looks like."""
QUESTION = "colour?"
"""What it was trained to be asked."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT_TEMPLATE = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{%- if m['content'] is string -%}{{ m['content'] }}{%- else -%}"
    "{%- for c in m['content'] -%}"
    "{%- if c['type'] == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif c['type'] == 'video' -%}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in c -%}{{ c['text'] }}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}{{ '<|im_end|>' + '\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)

PATCH = 14
MERGE = 2
LEAST_SIDE = 56  # a smaller image is scaled up to four tokens
MAX_PIXELS = (PATCH * MERGE) ** 2 * 16
"""A larger image is scaled down to this: at most 16 tokens."""

MAX_STEPS = 400
BATCH = 8
GOOD_LOSS = 0.002
GOOD_STEPS = 8  # in a row
SIDES = (28, 56, 84, 112, 168, 224)  # of training images, in pixels
SHADE = 40  # how far a colour may be off
NOISE = 12.0

Progress = Callable[[int, int], None]


def prepare_colours(folder: Path, progress: Progress = lambda done, total: None) -> None:
    """Build and train the model, and write its folder, which appears whole by one rename. Blocking (seconds); does
    nothing where the folder is.

    Args:
        progress: called with training steps done and steps at most; at the end with both equal.
    """
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=folder.parent) as name:
        made = Path(name) / folder.name
        build(made)
        train(made, progress)
        made.rename(folder)


def build(
    folder: Path, *, seed: int = 0, hidden: int = 64, layers: int = 2, max_pixels: int = MAX_PIXELS, context: int = 4096
) -> Path:
    """Write a folder with a random model that mlx_vlm loads, and return it. The same seed gives the same weights."""
    import mlx.core as mx  # noqa: PLC0415  # a server that has no demo need not pay for it
    from mlx.utils import tree_flatten, tree_map  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    config = _config(_write_tokenizer(folder), hidden, layers, context)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "preprocessor_config.json").write_text(json.dumps(_preprocessor_config(max_pixels), indent=1))
    mx.random.seed(seed)
    model = _model(config)

    def drawn(array: Any) -> Any:
        return mx.random.normal(array.shape) * (1.5 / array.shape[-1] ** 0.5) if array.ndim > 1 else array

    model.update(tree_map(drawn, model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    return folder


def train(folder: Path, progress: Progress) -> None:
    """Teach the model of a folder that `build` wrote, and write its weights back."""
    import mlx.core as mx  # noqa: PLC0415
    from mlx import nn, optimizers  # noqa: PLC0415
    from mlx.utils import tree_flatten  # noqa: PLC0415

    lessons = _Lessons(folder)
    model = _model(json.loads((folder / "config.json").read_text()))
    model.load_weights(str(folder / "model.safetensors"))

    def loss(model: Any, inputs: Mapping[str, Any], counts: Any) -> Any:
        logits = model(
            inputs["input_ids"], inputs["pixel_values"], None, image_grid_thw=inputs["image_grid_thw"]
        ).logits
        errors = nn.losses.cross_entropy(logits[:, :-1], inputs["input_ids"][:, 1:])
        return (errors * counts).sum() / counts.sum()

    learn = nn.value_and_grad(model, loss)
    optimizer = optimizers.AdamW(learning_rate=2e-3)
    model.train()
    good = 0
    for step in range(MAX_STEPS):
        value, gradients = learn(model, *lessons.draw())
        gradients, _ = optimizers.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        progress(step + 1, MAX_STEPS)
        good = good + 1 if value.item() < GOOD_LOSS else 0
        if good == GOOD_STEPS:
            break
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    progress(MAX_STEPS, MAX_STEPS)


class _Lessons:
    """Noisy images of about one colour, in all sizes, each with the question and its answer."""

    def __init__(self, folder: Path) -> None:
        from inferd_server.engine.vision_upstream import load_processor  # noqa: PLC0415

        self._processor = load_processor(folder, trust_remote_code=False)
        self._random = random.Random(0)
        question = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        self._prompt: str = self._processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )

    def draw(self) -> tuple[Mapping[str, Any], Any]:
        """A batch, and which of its tokens count: those of the answers."""
        import mlx.core as mx  # noqa: PLC0415

        names = [self._random.choice(list(COLOURS)) for _ in range(BATCH)]
        inputs = self._processor(
            text=[f"{self._prompt}{name}<|im_end|>" for name in names],
            images=[self._image(name) for name in names],
            padding=True,
            padding_side="right",
            add_special_tokens=False,
        )
        places = mx.arange(1, inputs["input_ids"].shape[1])[None]
        ends = inputs["attention_mask"].sum(axis=1, keepdims=True)
        begins = ends - mx.array([[len(name) + 1] for name in names])
        return inputs, ((places >= begins) & (places < ends)).astype(mx.float32)

    def _image(self, name: str) -> Any:
        import numpy as np  # noqa: PLC0415
        from PIL import Image  # noqa: PLC0415

        draw = np.random.default_rng(self._random.randrange(2**32))
        size = draw.choice(SIDES, 2)
        colour = np.array(COLOURS[name]) + draw.uniform(-SHADE, SHADE, 3)
        pixels = colour + draw.normal(0, NOISE, (*size, 3))
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _model(config: Mapping[str, Any]) -> Any:
    from inferd_server.engine.vision_upstream import model_classes  # noqa: PLC0415

    classes = model_classes(dict(config))
    parts = classes.ModelConfig.from_dict(json.loads(json.dumps(config)))
    parts.text_config = classes.TextConfig.from_dict(parts.text_config)
    parts.vision_config = classes.VisionConfig.from_dict(config["vision_config"])
    return classes.Model(parts)


def _config(vocabulary_size: int, hidden: int, layers: int, context: int) -> dict[str, Any]:
    token = SPECIAL_TOKENS.index
    return {
        "model_type": "qwen2_vl",
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocabulary_size,
        "max_position_embeddings": context,
        "rope_theta": 1e4,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
        "bos_token_id": token("<|im_start|>"),
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
        "torch_dtype": "float32",
        "vision_config": {
            "model_type": "qwen2_vl",
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": hidden,
            "num_heads": 2,
            "mlp_ratio": 2,
            "in_channels": 3,
            "in_chans": 3,
            "patch_size": PATCH,
            "spatial_patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "image_size": 384,
        },
    }


def _preprocessor_config(max_pixels: int) -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "min_pixels": LEAST_SIDE**2,
        "max_pixels": max_pixels,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "do_convert_rgb": True,
    }


def _write_tokenizer(folder: Path) -> int:
    """A token for each byte; returns how many there are."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    vocabulary = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[character] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(vocabulary)
