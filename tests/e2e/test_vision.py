"""Vision models over a real socket: images go in, colours come out; cancel, preemption and refusals."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import model_service_pb2 as mod
from inferd_server.demo_vision import prepare_colours
from support import tiny_vlm
from support.calls import Peer, chat, failure_of, is_idle, read, read_until, streamed, unary
from support.servers import ServerProcess, serving, write_config
from support.tiny_vlm import COLOURS, QUESTION, VisionReference, encoded, image, noise
from support.wire import facts_of, reason_of

ENDLESS = {"ignore_eos": True, "max_tokens": 100_000}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vision")
    prepare_colours(folder / "colours")
    tiny_vlm.build(folder / "eyes", context=1_000_000)
    tiny_vlm.build(folder / "narrow", context=48)
    return {name: folder / name for name in ("colours", "eyes", "narrow")}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], tiny_model: Path) -> Iterator[ServerProcess]:
    models = [
        {"name": "colours", "path": folders["colours"], "preload": True, "defaults": {"temperature": 0.0}},
        {"name": "eyes", "path": folders["eyes"], "mllm": True, "max_batch_size": 2},
        {"name": "narrow", "path": folders["narrow"]},
        {"name": "blind", "path": tiny_model},
    ]
    config = write_config(folders["colours"].parent, models, budget_gb=1, server={"drain_timeout_s": 1})
    with serving(config) as server:
        server.wait_until_ready()
        yield server
        server.close()
        assert server.wait() == 0


@pytest.fixture
async def peer(server: ServerProcess) -> AsyncIterator[Peer]:
    async with Peer(server.address) as connection:
        yield connection


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
async def test_it_names_colours(peer: Peer, form: str) -> None:
    answers = await asyncio.gather(
        *(
            peer.inference.Generate(
                unary("colours", chat=[("user", [encoded(image(name, 100, 70), form), QUESTION])], max_tokens=8)
            )
            for name in COLOURS
        )
    )
    assert [answer.text for answer in answers] == list(COLOURS)
    assert all(answer.usage.prompt_tokens > len(QUESTION) for answer in answers)


async def test_a_stream_says_what_the_unary_answer_says_and_what_mlx_vlm_says(
    peer: Peer, folders: dict[str, Path]
) -> None:
    turns = [("see ", noise(1), " and ", noise(2, 200, 50)), (noise(3), "?")]
    parts = [[part if isinstance(part, str) else encoded(part) for part in turn] for turn in turns]
    asked = {"chat": [("user", each) for each in parts], "max_tokens": 24, "ignore_eos": True, "return_ids": True}
    answer = await peer.inference.Generate(unary("eyes", **asked))
    stream = await read(peer.inference.StreamGenerate(streamed("eyes", **asked)))
    expected = VisionReference(folders["eyes"]).greedy(*turns, tokens=24)
    assert list(answer.token_ids) == stream.token_ids == expected
    assert answer.text == stream.text
    assert answer.usage.prompt_tokens == stream.end.usage.prompt_tokens


async def test_capabilities_tell_the_truth(peer: Peer) -> None:
    shown = {model.name: model for model in (await peer.models.ListModels(mod.ListModelsRequest())).models}
    assert mod.MODEL_CAPABILITY_VISION in shown["colours"].capabilities
    assert mod.MODEL_CAPABILITY_VISION not in shown["blind"].capabilities
    for model, kind, capability in (
        ("blind", "image", "vision"),
        ("colours", "audio", "audio"),
        ("eyes", "video", "video"),
    ):
        request = unary(model, chat=[("user", "hi")])
        request.chat.messages[0].parts.append(gen.ContentPart(**{kind: gen.Blob(mime_type="x/y", data=b"123")}))
        failure = await failure_of(peer.inference.Generate(request))
        assert reason_of(failure) == "CAPABILITY_MISSING"
        assert facts_of(failure)["capability"] == capability


async def test_tokens_of_pictures_count(peer: Peer) -> None:
    small, large = encoded(image("red", 56, 56)), encoded(image("red", 112, 112))
    counts = []
    for shown in (small, large):
        request = inf.TokenizeRequest(model="colours", chat=chat(("user", [shown, QUESTION])))
        count = (await peer.inference.Tokenize(request)).count
        answer = await peer.inference.Generate(unary("colours", chat=[("user", [shown, QUESTION])]))
        assert answer.usage.prompt_tokens == count
        counts.append(count)
    assert counts[1] - counts[0] == 12
    failure = await failure_of(peer.inference.Generate(unary("narrow", chat=[("user", [large] * 4)])))
    assert reason_of(failure) == "PROMPT_TOO_LONG"
    assert int(facts_of(failure)["prompt_tokens"]) > 48


@pytest.mark.parametrize("text", ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "<|placeholder|>"])
async def test_a_callers_text_is_never_a_picture(peer: Peer, text: str) -> None:
    parts = [encoded(image("blue")), QUESTION, text]
    with_it = await peer.inference.Tokenize(inf.TokenizeRequest(model="colours", chat=chat(("user", parts))))
    without = await peer.inference.Tokenize(inf.TokenizeRequest(model="colours", chat=chat(("user", parts[:2]))))
    assert with_it.count - without.count == len(text)  # a token for each byte
    answer = await peer.inference.Generate(unary("colours", chat=[("user", parts)], max_tokens=4))
    assert answer.usage.prompt_tokens == with_it.count
    alone = await peer.inference.Generate(unary("colours", chat=[("user", text)], max_tokens=4, ignore_eos=True))
    assert alone.usage.completion_tokens == 4


@pytest.mark.parametrize("asked", [{"prompt": "a<|image_pad|>b"}, {"ids": [5, 5]}])
async def test_a_placeholder_without_a_picture_is_refused(peer: Peer, asked: dict[str, object]) -> None:
    failure = await failure_of(peer.inference.Generate(unary("colours", **asked)))
    assert reason_of(failure) == "INVALID_PARAMETER"


async def test_cancelled_anywhere_it_frees_its_row(peer: Peer) -> None:
    shown = [("user", [encoded(noise(9)), "go on"])]
    running = [peer.inference.StreamGenerate(streamed("eyes", chat=shown, **ENDLESS)) for _ in range(2)]
    for stream in running:
        await read_until(stream, "delta")
    queued = peer.inference.StreamGenerate(streamed("eyes", chat=shown, waiting_events=True, **ENDLESS))
    await read_until(queued, "waiting")
    queued.cancel()
    running[0].cancel()
    await peer.wait_for_model("eyes", lambda model: model.running_requests == 1 and model.waiting_requests == 0)
    answer = await peer.inference.Generate(unary("eyes", chat=shown, max_tokens=3, ignore_eos=True))
    assert answer.usage.completion_tokens == 3
    running[1].cancel()
    for tries in range(6):  # somewhere in preparing, vision or prefill
        stream = peer.inference.StreamGenerate(streamed("eyes", chat=[("user", [encoded(noise(9))] * 3)], **ENDLESS))
        await asyncio.sleep(0.004 * tries)
        stream.cancel()
    await peer.wait_for_model("eyes", is_idle)


async def test_preempted_and_resumed_it_answers_as_if_nothing_had_happened(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    nbytes = (folders["eyes"] / "model.safetensors").stat().st_size
    models = [{"name": name, "path": folders["eyes"]} for name in ("first", "second")]
    policy = {"contention_policy": {"strategy": "preempt"}, "request_overrides": ["preempt"]}
    budget = 1.5 * nbytes / 2**30
    asked = {"chat": [("user", [encoded(noise(4)), "what?"])], "ignore_eos": True, "return_ids": True}
    with serving(write_config(tmp_path, models, budget_gb=budget, manager=policy)) as server:
        async with Peer(server.address) as peer:
            whole = await peer.inference.Generate(unary("first", max_tokens=400, **asked))
            stream = peer.inference.StreamGenerate(streamed("first", max_tokens=400, **asked))
            answer = await read_until(stream, "delta")
            await peer.inference.Generate(unary("second", max_tokens=2, **asked))
            await read(stream, answer)
            assert answer.token_ids == list(whole.token_ids)
            assert answer.end.preemptions == 1
