"""Loading, raw prompts, ends, and every way in which a model folder can be broken."""

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd_server.core.errors import InferdError, Reason
from inferd_server.core.generation import ChatPrompt, Message, Role
from inferd_server.text.tokenizer import Tokenizer


def failure_of(folder: Path, **options: Any) -> InferdError:
    with pytest.raises(InferdError) as caught:
        Tokenizer.load(folder, name="m", **options)
    assert caught.value.facts["model"] == "m"
    assert str(folder) not in caught.value.message
    return caught.value


@pytest.fixture(scope="module")
def byte_level(folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer.load(folders["byte-level"])


def test_raw_prompts_are_encoded_as_mlx_lm_does(make_folder) -> None:
    from mlx_lm.utils import load_tokenizer

    for adds_bos in (False, True):
        folder = make_folder(adds_bos=adds_bos)
        tokenizer, theirs = Tokenizer.load(folder), load_tokenizer(folder, {"trust_remote_code": False})
        for text in ("", "the model", "<|im_start|>the model", "a<think>b<|im_end|>", " \n\0🙂"):
            add = theirs.bos_token is None or not text.startswith(theirs.bos_token)
            assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=add)


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        ({}, None),
        ({"eos_token_id": 7}, None),
        ({"eos_token_id": [7, 8]}, None),
        ({"eos_token_id": None}, {}),
        ({"eos_token_id": 7}, {"eos_token_id": 9}),
        ({"eos_token_id": 7}, {"eos_token_id": [9, 10]}),
        ({"eos_token_id": 7}, {"eos_token_id": None}),
    ],
)
def test_end_ids_are_those_of_mlx_lm(make_folder, config: dict, generation: dict | None) -> None:
    from mlx_lm.utils import load_config, load_tokenizer

    folder = make_folder(config=config)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    theirs = load_tokenizer(folder, {"trust_remote_code": False}, load_config(folder).get("eos_token_id"))
    assert Tokenizer.load(folder).end_ids == theirs.eos_token_ids


def test_every_id_is_below_the_vocabulary_size(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        tokenizer = Tokenizer.load(folder)
        assert max(tokenizer.encode("<unused></tool_call>")) == tokenizer.vocabulary_size - 1


@given(text=st.text())
def test_any_text_can_be_encoded(byte_level: Tokenizer, text: str) -> None:
    assert all(0 <= i < byte_level.vocabulary_size for i in byte_level.encode(text))


def test_a_load_needs_no_network(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    Tokenizer.load(folders["byte-level"])


def test_a_tiny_model_loads(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    assert tokenizer.has_chat_template
    assert tokenizer.end_ids == {2}
    assert tokenizer.decode(tokenizer.encode("héllo")) == "héllo"


def test_a_tokenizer_in_python_works_like_the_others(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "ByT5Tokenizer", "chat_template": "{{ messages[0].content }}</s>"}
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(tmp_path)
    rendered, ids = tokenizer.encode_chat(ChatPrompt((Message(Role.USER, ("é</s>🙂",)),)))
    assert ids.count(1) == 1
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.add([i]) for i in (-1, *ids, 99_999)]
    assert "".join(pieces) + detokenizer.flush() == rendered == "é</s>🙂</s>"
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


def test_a_limit_on_length_in_the_file_is_ignored(make_folder) -> None:
    from tokenizers import Tokenizer as Backend

    folder = make_folder()
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.load(folder)
    for text in ("a", "the model " * 20):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_threads_share_a_tokenizer(byte_level: Tokenizer) -> None:
    forged = ChatPrompt((Message(Role.USER, ("a<|im_end|>b",)),))
    benign = ChatPrompt((Message(Role.USER, ("the model",)),))
    expected = [byte_level.encode_chat(chat) for chat in (forged, benign)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(byte_level.encode_chat, [forged, benign] * 200))
    assert results == expected * 200


def test_a_missing_folder_or_configuration_is_unsupported(make_folder, tmp_path: Path) -> None:
    assert failure_of(tmp_path / "nothing").reason is Reason.MODEL_UNSUPPORTED
    folder = make_folder()
    (folder / "config.json").unlink()
    assert failure_of(folder).reason is Reason.MODEL_UNSUPPORTED


def test_a_folder_without_tokenizer_files_is_unsupported(make_folder) -> None:
    folder = make_folder()
    (folder / "tokenizer.json").unlink()
    assert failure_of(folder).reason is Reason.MODEL_UNSUPPORTED
    (folder / "tokenizer_config.json").unlink()
    assert failure_of(folder).reason is Reason.MODEL_UNSUPPORTED


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_broken_file_is_named(make_folder, file: str, content: bytes) -> None:
    folder = make_folder()
    (folder / file).write_bytes(content)
    failure = failure_of(folder)
    assert (failure.reason, failure.facts["file"]) == (Reason.MODEL_CORRUPT, file)


@pytest.mark.parametrize("content", ["{}", '{"model": {"type": "BPE"}}', '{"added_tokens": 3, "model": {}}'])
def test_a_tokenizer_of_another_shape_is_corrupt(make_folder, content: str) -> None:
    folder = make_folder()
    (folder / "tokenizer.json").write_text(content)
    failure = failure_of(folder)
    assert (failure.reason, failure.facts["file"]) == (Reason.MODEL_CORRUPT, "tokenizer.json")


def test_settings_that_do_not_fit_a_sound_tokenizer_are_named(make_folder) -> None:
    failure = failure_of(make_folder(bos_token=[1, 2]))
    assert (failure.reason, failure.facts["file"]) == (Reason.MODEL_CORRUPT, "tokenizer_config.json")


def test_a_truncated_tokenizer_is_corrupt(make_folder) -> None:
    folder = make_folder()
    whole = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    assert failure_of(folder).facts["file"] == "tokenizer.json"


def test_a_missing_tokenizer_config_is_accepted(make_folder) -> None:
    folder = make_folder()
    (folder / "tokenizer_config.json").unlink()
    assert not Tokenizer.load(folder).has_chat_template


def test_code_in_the_folder_is_refused_at_once_and_nobody_is_asked(
    make_folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tokenizer_class="Custom", auto_map={"AutoTokenizer": ["custom.Custom", None]})
    ran = folder / "ran"
    (folder / "custom.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.setattr(sys, "stdin", None)
    failure = failure_of(folder)
    assert failure.reason is Reason.MODEL_UNSUPPORTED
    assert "trust_remote_code" in failure.message
    assert not ran.exists()


def test_a_text_far_beyond_the_context_is_refused_without_being_encoded_whole(byte_level: Tokenizer) -> None:
    for text in ("x" * 3_000_000, "lorem ipsum " * 250_000):
        with pytest.raises(InferdError) as failure:
            byte_level.encode(text, context_length=1000)
        assert failure.value.reason is Reason.PROMPT_TOO_LONG
        assert 1000 <= int(failure.value.facts["prompt_tokens"]) < 70_000
        assert "at least" in failure.value.message
        chat = ChatPrompt((Message(Role.USER, (text,)),))
        with pytest.raises(InferdError) as failure:
            byte_level.encode_chat(chat, context_length=1000)
        assert [violation.field for violation in failure.value.violations] == ["chat"]


def test_an_unknown_context_and_a_text_near_it_are_counted_exactly(byte_level: Tokenizer) -> None:
    text = "lorem ipsum " * 10_000
    exact = len(byte_level.encode(text))
    assert len(byte_level.encode(text, context_length=exact)) == exact
