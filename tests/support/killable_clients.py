"""Client processes to be killed or stopped: `python -m support.killable_clients ADDRESS MODEL COUNT`.

Forks COUNT processes that each stream without end over a connection of their own, and prints the pid of each once its
first tokens are there. Ends when all of them have ended.
"""

import os
import sys

import grpc

from inferd.v1 import generation_pb2 as gen
from inferd.v1 import inference_service_pb2 as inf
from inferd.v1 import inference_service_pb2_grpc as stubs


def stream(address: str, model: str) -> None:
    """Stream until somebody ends it."""
    stop = gen.StopOptions(max_tokens=90_000, ignore_eos=True)
    request = inf.StreamGenerateRequest(model=model, prompt="go on", stop=stop)
    call = stubs.InferenceServiceStub(grpc.insecure_channel(address)).StreamGenerate(request)
    for number, response in enumerate(call):
        if number == 1:
            assert response.WhichOneof("event") == "delta"
            os.write(1, b"%d\n" % os.getpid())  # one write: lines of several processes do not mix


def main() -> None:
    address, model, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for _ in range(count):
        if os.fork() == 0:  # before grpc starts its threads: each child starts its own
            try:
                stream(address, model)
            finally:
                os._exit(1)
    for _ in range(count):
        os.wait()


if __name__ == "__main__":
    main()
