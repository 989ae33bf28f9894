"""LoRA adapters: folders as mlx_lm writes them, laid over a model's weights at its load. No mlx is imported here."""

from pathlib import Path
from typing import Any

from inferd_server.core.errors import model_corrupt, model_load_failed, model_unsupported
from inferd_server.core.model import EngineSettings

from .headers import WeightsError, read_header, read_object

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapters.safetensors"
PEFT_WEIGHTS_FILE = "adapter_model.safetensors"
KINDS = ("lora", "dora", "full")


class AdapterError(ValueError):
    """An adapter that does not fit its model."""


def check_adapter(settings: EngineSettings) -> None:
    """Check what can be told without the model: the adapter's files are there, whole and of mlx_lm's form.

    Raises:
        InferdError: MODEL_CORRUPT (with the file), MODEL_UNSUPPORTED for PEFT's form, or MODEL_LOAD_FAILED where there
            is no folder.
    """
    name, folder = settings.name, settings.adapter_path
    if folder is None:
        return
    if not folder.is_dir():
        raise model_load_failed(name, f"the adapter folder of model {name!r} does not exist")
    if (folder / PEFT_WEIGHTS_FILE).is_file() and not (folder / WEIGHTS_FILE).is_file():
        raise model_unsupported(name, f"the adapter is in PEFT's form ({PEFT_WEIGHTS_FILE}); convert it to mlx_lm's")
    problem = _config_problem(read_object(folder / CONFIG_FILE))
    if problem:
        raise model_corrupt(name, CONFIG_FILE, f"{CONFIG_FILE} {problem}")
    problem = _weights_problem(folder / WEIGHTS_FILE)
    if problem:
        raise model_corrupt(name, WEIGHTS_FILE, problem)


def lacking(adapter: Path, parameters: list[str]) -> str:
    """The first of an adapted model's parameters that belongs to the adapter but is not in its file; "" if none is.

    mlx_lm would leave such a layer without effect, silently.
    """
    there = read_header(adapter / WEIGHTS_FILE).tensors
    return next((name for name in parameters if name.endswith((".lora_a", ".lora_b")) and name not in there), "")


def _config_problem(config: dict[str, Any] | None) -> str:
    if config is None:
        return "is missing or no JSON object"
    kind = config.get("fine_tune_type", "lora")
    if kind not in KINDS:
        return f"has a fine_tune_type other than {', '.join(KINDS)}"
    if kind == "full":
        return ""
    parameters = config.get("lora_parameters")
    if not isinstance(config.get("num_layers"), int) or not isinstance(parameters, dict):
        return "lacks num_layers (a whole number) or lora_parameters (an object)"
    return _parameters_problem(parameters)


def _parameters_problem(parameters: dict[str, Any]) -> str:
    rank, keys = parameters.get("rank"), parameters.get("keys")
    numbers = (parameters.get("scale"), parameters.get("dropout"))
    if not isinstance(rank, int) or rank < 1 or not all(isinstance(number, int | float) for number in numbers):
        return "needs rank (a whole number above 0), scale and dropout (numbers) in lora_parameters"
    if keys is not None and not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        return "has lora_parameters.keys that are no list of names"
    return ""


def _weights_problem(file: Path) -> str:
    try:
        return "" if read_header(file).tensors else f"{file.name}: holds no tensors"
    except WeightsError as error:
        return str(error)
