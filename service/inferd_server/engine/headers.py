"""What safetensors headers say about the weights of a folder. No weights are read; no mlx is imported."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_NBYTES = 100_000_000
"""The format's own limit for a header."""


class WeightsError(ValueError):
    """Weight files that can't be right. `file` is the bare name of the one to blame."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__(f"{file}: {message}")
        self.file = file


@dataclass(frozen=True, slots=True)
class Header:
    """One safetensors file: its tensors' names and their bytes in all."""

    tensors: frozenset[str]
    nbytes: int


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a model: those its index names, else the *.safetensors beside its config.

    Raises:
        WeightsError: the index is unreadable or names a file outside the folder.
    """
    index = _weight_map(folder)
    names = set(index.values()) if index else {path.name for path in folder.glob("*.safetensors")}
    return [folder / name for name in sorted(names)]


def weights_nbytes_on_disk(folder: Path) -> int:
    """Bytes of all tensors, from the headers alone: what the parameters take in memory (exact to 0.1 %).

    Raises:
        WeightsError: a file is missing, truncated or no safetensors file.
    """
    return sum(read_header(path).nbytes for path in weight_files(folder))


def check_weights(folder: Path) -> None:
    """Every file is there and whole, and every tensor of the index is in the file that should hold it.

    Raises:
        WeightsError: what is wrong, and in which file.
    """
    files = weight_files(folder)
    if not files:
        raise WeightsError("model.safetensors", "the folder has no safetensors file")
    headers = {path.name: read_header(path) for path in files}
    for tensor, name in _weight_map(folder).items():
        if tensor not in headers[name].tensors:
            raise WeightsError(name, f"lacks the tensor {tensor!r} that the index promises")


def read_header(path: Path) -> Header:
    """Read and check one header: offsets must cover the file exactly up to its end.

    Raises:
        WeightsError: the file is missing, empty, truncated or garbage.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER_NBYTES):
                raise WeightsError(path.name, "is no safetensors file (empty, cut off or garbage)")
            header = json.loads(file.read(length))
    except OSError as error:
        raise WeightsError(path.name, f"can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(path.name, "has a garbled safetensors header") from None
    return _checked(path.name, header, size - 8 - length)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None if the file is anything else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _checked(name: str, header: Any, data_nbytes: int) -> Header:
    if not isinstance(header, dict):
        raise WeightsError(name, "has a garbled safetensors header")
    header.pop("__metadata__", None)
    total = end_of_data = 0
    try:
        for tensor in header.values():
            begin, end = map(int, tensor["data_offsets"])
            if not 0 <= begin <= end:
                raise WeightsError(name, "has impossible data offsets")
            total += end - begin
            end_of_data = max(end_of_data, end)
    except (TypeError, KeyError) as error:
        raise WeightsError(name, f"has a garbled safetensors header ({type(error).__name__})") from None
    if end_of_data > data_nbytes:
        raise WeightsError(name, f"is cut off: {data_nbytes} of {end_of_data} bytes of data are there")
    return Header(tensors=frozenset(header), nbytes=total)


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor name to file name by the index; empty without an index."""
    path = folder / INDEX_FILE
    if not path.is_file():
        return {}
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        entries = {str(tensor): str(name) for tensor, name in weight_map.items()}
    except OSError as error:
        raise WeightsError(INDEX_FILE, f"can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WeightsError(INDEX_FILE, "is no weight index") from None
    if not entries:
        raise WeightsError(INDEX_FILE, "names no weights")
    for name in set(entries.values()):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise WeightsError(INDEX_FILE, f"names {name!r}, which is no safetensors file of this folder")
    return entries
