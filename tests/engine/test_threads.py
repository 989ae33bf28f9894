"""A worker thread owns the engine from its load to its end; the process stays whole."""

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from support.engine_room import Reference, ids, open_engine, request, run


def test_engines_on_two_threads_decode_side_by_side(tiny_model: Path) -> None:
    from inferd_server.engine import device

    device.release_unused()
    before = device.active_nbytes()
    answers: dict[int, list[list[int]]] = {}

    def work(number: int) -> None:
        engine = open_engine(tiny_model)
        prompts = [[number + 1] * length for length in (3, 20, 9)]
        answers[number] = [ids(tokens) for tokens in run(engine, *(request(each, 30) for each in prompts))]
        engine.close()
        device.end_thread()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.active_nbytes() == before
    reference = Reference(tiny_model)
    for number in range(2):
        assert answers[number] == [reference.greedy([number + 1] * length, 30) for length in (3, 20, 9)]


def run_python(code: str, *arguments: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_process_whose_worker_was_in_the_middle_of_decoding_exits_cleanly(tiny_model: Path) -> None:
    code = """
        import sys, threading
        from pathlib import Path
        from inferd_server.core.generation import DecodeRequest, Sampling
        from inferd_server.core.model import EngineSettings
        from inferd_server.engine import device
        from inferd_server.engine.language import open_language_engine

        class Loading:
            abandoned = False
            def progress(self, done, total): pass

        def work():
            engine = open_language_engine(EngineSettings("tiny", Path(sys.argv[1])), Loading())
            for _ in range(8):
                engine.insert(DecodeRequest((1, 2, 3), Sampling(0.8), 1000, top_logprobs=5))
            for _ in range(20):
                engine.step()
            engine.close()
            device.end_thread()

        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        print(device.active_nbytes())
    """
    assert int(run_python(code, str(tiny_model))) < 1000


def test_importing_the_engine_leaves_the_limit_of_open_files_alone() -> None:
    code = """
        import resource
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        set_limit = resource.setrlimit
        import inferd_server.engine.language
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
        assert resource.setrlimit is set_limit
    """
    run_python(code)


def test_the_device_reports_itself() -> None:
    from inferd_server.engine import device

    report = device.report()
    assert report.device
    assert report.mlx_version.startswith("0.")
    assert report.working_set_nbytes >= 0
    assert report.active_nbytes >= 0
