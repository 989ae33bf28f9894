"""Tiny vision models, images to show them, and mlx_vlm's own answers to compare with."""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferd_server.core.generation import ChatPrompt, Message, Role
from inferd_server.core.media import Blob, MediaKind, Picture
from inferd_server.demo_vision import COLOURS, QUESTION, build

__all__ = ["COLOURS", "QUESTION", "VisionReference", "build", "chat", "encoded", "image", "noise", "picture"]


def image(colour: str | tuple[int, int, int], width: int = 64, height: int = 64) -> Any:
    """A PIL image of one colour."""
    from PIL import Image

    return Image.new("RGB", (width, height), COLOURS[colour] if isinstance(colour, str) else colour)


def noise(seed: int, width: int = 90, height: int = 60) -> Any:
    """A PIL image of noise."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(shown: Any, form: str = "PNG", **options: Any) -> bytes:
    """The bytes of a PIL image in a file format."""
    buffer = io.BytesIO()
    shown.save(buffer, form, **options)
    return buffer.getvalue()


def picture(shown: Any) -> Picture:
    """A PIL image as the decoder hands it on."""
    rgb = shown.tobytes()
    digest = hashlib.sha256(f"{shown.size}".encode() + rgb).hexdigest()
    return Picture(shown.width, shown.height, rgb, digest)


def chat(*turns: Sequence[Any]) -> ChatPrompt:
    """A chat of user turns; what is no text in them is an image."""
    blob = Blob(MediaKind.IMAGE, "", b"", "")
    parts = [tuple(part if isinstance(part, str) else blob for part in turn) for turn in turns]
    return ChatPrompt(tuple(Message(Role.USER, each) for each in parts))


class VisionReference:
    """mlx_vlm's own decoding of a folder, one prompt at a time, and our way of preparing prompts for it."""

    def __init__(self, folder: Path) -> None:
        from inferd_server.engine.vision_inputs import PictureReader
        from inferd_server.engine.vision_upstream import load_processor, load_vision_model
        from inferd_server.text.tokenizer import Tokenizer

        self.folder = folder
        self.model, _ = load_vision_model(folder)
        self.processor = load_processor(folder, trust_remote_code=False)
        self.tokenizer = Tokenizer.load(folder)
        self.reader = PictureReader.load(folder)

    def greedy(self, *turns: Sequence[Any], tokens: int = 16) -> list[int]:
        """mlx_vlm's tokens for a chat of user turns."""
        return [token for token, _ in self.steps(*turns, tokens=tokens)]

    def steps(self, *turns: Sequence[Any], tokens: int = 16) -> list[tuple[int, Any]]:
        """Each token with its log probabilities, as a NumPy vector."""
        import mlx.core as mx
        import numpy as np
        from mlx_vlm.generate.ar import generate_step
        from mlx_vlm.utils import prepare_inputs

        content = [
            [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in turn]
            for turn in turns
        ]
        prompt = self.processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": each} for each in content], add_generation_prompt=True, tokenize=False
        )
        images = [part for turn in turns for part in turn if not isinstance(part, str)]
        inputs = prepare_inputs(self.processor, images=images or None, prompts=[prompt])
        rest = {key: value for key, value in inputs.items() if key not in ("input_ids", "pixel_values")}
        mask = rest.pop("attention_mask", None)
        ids, pixels = inputs["input_ids"], inputs.get("pixel_values")
        steps = generate_step(ids, self.model, pixels, mask, max_tokens=tokens, **rest)
        return [(token, np.array(logprobs.astype(mx.float32)).reshape(-1)) for token, logprobs in steps]

    def greedy_as_prepared(self, *turns: Sequence[Any], tokens: int = 16) -> list[int]:
        """mlx_vlm's tokens for what serving prepares of a chat with pictures."""
        import mlx.core as mx
        from mlx_vlm.generate.ar import generate_step

        prompt, pictures = self.prompt(*turns)
        values = {name: mx.array(value) for name, value in pictures.values.items()}
        ids = mx.array([prompt])
        pixels = values.pop("pixel_values")
        steps = generate_step(ids, self.model, pixels, mx.ones(ids.shape, mx.int32), max_tokens=tokens, **values)
        return [token for token, _ in steps]

    def prompt(self, *turns: Sequence[Any]) -> tuple[list[int], Any]:
        """(ids, pictures) of a chat of user turns, as serving prepares them."""
        shown = [picture(part) for turn in turns for part in turn if not isinstance(part, str)]
        read = self.reader.read(shown, self.tokenizer.picture_mark) if shown else None
        _, ids = self.tokenizer.encode_chat(chat(*turns), pictures=read.texts if read else ())
        return ids, read.tensors if read else None
