"""Small tokenizers of each family, trained in milliseconds without a network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "the model answers the question about the weather in the city and the user thanks the model",
    "<|im_start|> im_end im_start start end system user assistant think tool call response",
    'der Käse schmeckt größer als 世界 und 🙂 — "quotes" {"name": "value"} 1234567890\n\n  indented\n',
] * 20
SPECIAL = ("<unk>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<unused>")
TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\n' }}{%- for t in tools %}{{ t | tojson + '\n' }}{%- endfor %}"
    "{{ '<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be first') }}{%- endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for c in m.tool_calls or [] %}"
    "{{ '<tool_call>' + c.function.name + ' ' + (c.function.arguments | tojson) + '</tool_call>' }}{%- endfor %}"
    "{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think></think>' }}{%- endif %}{%- endif %}"
)


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return tokenizer


def _sentencepiece() -> Tokenizer:
    letters = sorted({c for line in CORPUS for c in line if c.isascii() and c not in " \n"} | {"▁"})
    tokens = [*SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *letters, "th", "the", "▁the", "▁m", "▁▁"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "m"), ("▁", "▁")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    bpe = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["<unk>"]))
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": _byte_level,
    "sentencepiece": _sentencepiece,
    "metaspace": _metaspace,
    "wordpiece": _wordpiece,
}

MakeFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """make_folder(family, chat_template=, adds_bos=, normalized=, config=, **tokenizer_config) -> a model folder."""

    def make(
        family: str = "byte-level",
        *,
        chat_template: str | None = TEMPLATE,
        adds_bos: bool = False,
        normalized: bool = False,
        config: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Path:
        folder = tmp_path_factory.mktemp(family)
        tokenizer = FAMILIES[family]()
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=normalized) for t in SPECIAL])
        tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
        if adds_bos:
            bos = ("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))
            tokenizer.post_processor = processors.TemplateProcessing("<|im_start|> $0", special_tokens=[bos])
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": False,
            **({"chat_template": chat_template} if chat_template else {}),
            **settings,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", **(config or {})}))
        return folder

    return make


@pytest.fixture(scope="session")
def folders(make_folder: MakeFolder) -> dict[str, Path]:
    """One model folder of each family."""
    return {family: make_folder(family) for family in FAMILIES}
