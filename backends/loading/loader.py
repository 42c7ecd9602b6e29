"""`load`: a backend for a model object, a folder or a hub name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer
from transformers.utils import is_accelerate_available

from draftwood.backends.kinds.longrope import with_longrope
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading import mamba_in_llama, mamba_ssm
from draftwood.backends.loading.checkpoints import first_line, move_to
from draftwood.backends.loading.engines import Engine, check_engine, with_engine
from draftwood.backends.loading.gguf_loading import check_options, load_gguf
from draftwood.backends.loading.offloading import disk_options
from draftwood.backends.loading.tested_versions import warn_if_untested
from draftwood.backends.loading.tree_methods import checked, is_recurrent, masked
from draftwood.backends.model.model_backend import served_part
from draftwood.backends.openvino.conversion import Weights
from draftwood.backends.structure.auto_class import auto_class
from draftwood.backends.structure.forward import takes
from draftwood.backends.weights.weight_files import check_inside
from draftwood.base.devices import default_device
from draftwood.base.errors import DraftwoodError, InvalidInput, OutOfMemory, UnsupportedModel
from draftwood.base.gguf_name import names_gguf
from draftwood.base.machine_faults import machine_fault
from draftwood.base.placeholders import placeholder
from draftwood.protocols import StateBackend

Attention = Literal["auto", "mask", "paths"]


def load(
    model: Any,
    *,
    trust_remote_code: bool = False,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    offload: str | os.PathLike[str] | None = None,
    attention: Attention = "auto",
    capture: Literal["off", "compile", "cuda-graphs"] = "off",
    engine: Engine = "eager",
    weights: Weights | None = None,
) -> StateBackend:
    """Returns a backend for a decoder-only model or an encoder-decoder.

    Args:
        model: a transformers model, a folder, a name on the Hugging Face hub, or a GGUF file, which llama.cpp
            runs: `dtype` then is that of keys and values (`load_gguf`). Other weights are read from
            safetensors, never from pickles; but folders in the layouts of `mamba_ssm` and MambaInLlama, which
            are published as pickles, may hold those: torch's restricted unpickler reads them, which makes
            tensors and runs no code. A `MambaLMHeadModel` of mamba_ssm is taken too; a transformers model
            over the same tensors runs it.
        trust_remote_code: let the folder or hub repository run its Python code.
        dtype: of the weights, `torch.bfloat16` or `"bfloat16"`; None keeps the checkpoint's.
        device: where the weights go, `"cuda"` or `"auto"` (spread over what there is); None is the
            accelerator where there is one, else the CPU.
        offload: a folder: the weights of the decoder layers stay on the disk, and every pass streams them,
            the next ones while these compute. They come from the checkpoint's own files; the folder takes
            those that are not there as the model needs them. With a GPU, too, it is for models that do
            not fit; where streaming takes most of a pass, one over many nodes costs little more than one
            over a single token.
        attention: how trees run. `"mask"`: in one pass under a tree mask; `"paths"`: one batch row for each
            path; `"auto"`: by mask where a short self-check agrees with the model's own decoding. Recurrent
            layers follow the same mask; by paths, each path has a copy of their states.
        capture: whether passes over trees run in a few fixed shapes, each of which is compiled when it is
            first met: `"compile"` by torch.compile, `"cuda-graphs"` by it and CUDA graphs; `"off"`: never.
            How many were is the backend's `captured.graphs`.
        engine: what runs passes: `"eager"`, the model's own code; `"inductor"`, the same as
            `capture="compile"`; `"openvino"`, on a CPU, in the dtype of the weights, which must be float32 or
            bfloat16; `"auto"`, OpenVINO where it is installed and supports the model, else the model's own
            code, which of the two is logged. OpenVINO holds a copy of the weights.
        weights: what OpenVINO rounds its copy of the weights to: `"int8"` or `"int4"`, None: nothing. The
            backend then is one of another model, whose greedy texts are its own.

    Raises:
        InvalidInput: a folder that is missing or corrupt, an unknown option, a model in training mode.
        UnsupportedModel: no safetensors, remote code, a recurrent layer of an unknown kind, a model that
            fails the self-check, or one whose passes the engine does not run.
        OutOfMemory: the weights or the self-check did not fit.
    """
    warn_if_untested()
    if attention not in ("auto", "mask", "paths"):
        raise InvalidInput(f'attention is {attention!r}; it must be "auto", "mask" or "paths".')
    check_engine(engine, capture, weights)
    if names_gguf(model):
        check_options(
            attention=attention,
            capture=capture,
            engine=engine,
            offload=offload,
            trust_remote_code=trust_remote_code,
            weights=weights,
        )
        return load_gguf(Path(model).expanduser(), dtype=dtype, device=device)
    if isinstance(model, str | os.PathLike):
        model = load_model(
            model, trust_remote_code=trust_remote_code, dtype=dtype, device=device, offload=offload
        )
    elif dtype is not None or device is not None or offload is not None:
        raise InvalidInput(
            "dtype, device and offload are for folders and hub names; convert a model object with model.to() "
            "and offload it with accelerate."
        )
    elif mamba_ssm.is_model(model):
        model = mamba_ssm.converted(model)
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise InvalidInput(f"{model!r:.80} is no model; give a transformers model, a folder or a hub name.")
    return _backend(served_part(model), attention, capture, engine, weights)


def _backend(
    model: Any,
    attention: Attention,
    capture: Literal["off", "compile", "cuda-graphs"],
    engine: Engine,
    weights: Weights | None,
) -> StateBackend:
    """The backend of a model as it is now, which takes up later changes by being made here again."""
    refuse_unserved(model.config)
    backend: Any
    if model.config.is_encoder_decoder:
        backend = _encoder_decoder(model, attention)
    elif attention == "mask":
        backend = masked(model)
    elif attention == "paths" and not is_recurrent(model):
        backend = with_longrope(model, UnrolledBackend)
    else:
        backend = checked(model, by_mask=attention == "auto")
    backend = with_engine(backend, engine, capture, weights)
    backend.made_by(model, lambda: _backend(model, attention, capture, engine, weights))
    return backend  # type: ignore[no-any-return]


def _encoder_decoder(model: Any, attention: Attention) -> StateBackend:
    """The backend of a model whose prompts have a source; the first prompt shows whether it is right.

    One pass reads the trees of rows whose sources have one length, which a model shows by the table of
    positions that its encoder adds.
    """
    one_length = getattr(model.config, "max_source_positions", None) is not None
    by_mask = one_length and takes(model, "decoder_position_ids")
    if attention == "mask" or (attention == "auto" and by_mask):
        return TransformerBackend(model)
    return UnrolledBackend(model)


def load_model(
    name: str | os.PathLike[str],
    *,
    trust_remote_code: bool = False,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    offload: str | os.PathLike[str] | None = None,
) -> Any:
    """The model in a folder or on the hub, in evaluation mode; arguments and errors as in `load`."""
    name = os.fspath(name)
    a_path = Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if a_path and not Path(name).is_dir():
        raise InvalidInput(f"There is no model folder {name}; give a folder with config.json or a hub name.")
    check_inside(Path(name))
    for layout in (mamba_in_llama, mamba_ssm):
        if layout.is_in(Path(name)):
            if offload is not None:
                raise UnsupportedModel(
                    f"{name} has another layout than transformers' and is read whole; call save_pretrained() "
                    "on the model, and offload the folder that it writes."
                )
            chosen, target = _dtype(dtype), _device(device)
            weights_dtype = chosen if isinstance(chosen, torch.dtype) else None
            return move_to(layout.read(Path(name), dtype=weights_dtype), target)
    config = _read(AutoConfig, name, trust_remote_code=trust_remote_code)
    refuse_unserved(config)
    target = _device(device)
    places: dict[str, Any] = {}
    if offload is not None:
        places = disk_options(
            config, folder=Path(offload), device=target, trust_remote_code=trust_remote_code
        )
    elif target == "auto":
        # Spreading a model over devices is accelerate's work, which nobody else needs installed.
        places = {"device_map": "auto"}
    model, info = _read(
        auto_class(config),
        name,
        config=config,
        trust_remote_code=trust_remote_code,
        use_safetensors=True,
        dtype=_dtype(dtype),
        output_loading_info=True,
        **places,
    )
    # transformers fills what is missing with random numbers and only warns.
    for kind in ("missing_keys", "mismatched_keys"):
        if info[kind]:
            raise InvalidInput(
                f"The weights in {name} do not fit its config.json ({len(info[kind])} "
                f"{kind.replace('_', ' ')}, {min(map(str, info[kind]))} first); download the model again."
            )
    return model.eval() if places else _placed(model, target, name).eval()


def refuse_unserved(config: Any) -> None:
    """Raise `UnsupportedModel` for the families that no backend supports."""
    try:
        layers = DynamicCache(config=config).layers
    except Exception as error:  # configs of models that bring a cache class fail in many ways
        raise UnsupportedModel(
            f"{config.model_type} has no cache that transformers' DynamicCache can hold "
            f"({type(error).__name__}: {error}); use a model of attention or recurrent layers that it can."
        ) from error
    if any(type(layer) is DynamicSlidingWindowLayer and layer.sliding_window == 1 for layer in layers):
        raise UnsupportedModel(
            f"{config.model_type} has an attention window of 1 token, for which transformers' cache keeps "
            "the whole text, so that its generate() and its forward differ; use a window of 2 or more."
        )


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | str:
    if dtype is None or dtype == "auto":
        return "auto"
    torch_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        raise InvalidInput(f'dtype is {dtype!r}; it must be a floating-point one such as "bfloat16".')
    return torch_dtype


def _device(device: torch.device | str | None) -> torch.device | str:
    if device is None:
        return default_device()
    if device == "auto":
        if not is_accelerate_available():
            raise InvalidInput("device 'auto' needs the package accelerate; install it or name one device.")
    else:
        try:
            torch.empty(0, device=device, dtype=torch.float64)  # which draws need, and MPS lacks
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            raise InvalidInput(f"device {device!r} is not available here ({error}); try 'cpu'.") from error
    return device


def _read(auto: Any, name: str, **options: Any) -> Any:
    """`auto.from_pretrained(name, **options)` with one sentence for what can go wrong."""
    try:
        return auto.from_pretrained(name, **options)
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        RuntimeError,
        ImportError,
        SafetensorError,
        MemoryError,
    ) as error:
        raise _explained(name, error) from error


def _placed(model: Any, device: torch.device | str, name: str) -> Any:
    try:
        return model.to(device)
    except Exception as error:
        if (fault := machine_fault(error)) is not None and fault.kind == "memory":
            raise _too_large(name, error) from error
        raise


def _too_large(name: str, error: Exception) -> OutOfMemory:
    return OutOfMemory(
        f"The model in {name} does not fit into memory ({first_line(error)}); use a half-precision dtype, "
        "another device or offload=."
    )


def _explained(name: str, error: Exception) -> DraftwoodError:
    text = str(error)
    reason = text.strip().splitlines()[0].rstrip(".") if text.strip() else type(error).__name__
    if "trust_remote_code" in text:
        return UnsupportedModel(
            f"{name} asks to run its own Python code; that is refused without trust_remote_code=True."
        )
    if "safetensors" in text and "no file named" in text:
        return UnsupportedModel(
            f"{name} has no safetensors weights, and pickles are never loaded; convert it with "
            "save_pretrained()."
        )
    fault = machine_fault(error)
    if fault is not None and fault.kind == "memory":
        return _too_large(name, error)
    if fault is not None and fault.kind == "disk":
        return InvalidInput(f"There is no room for what {name} needs ({reason[:160]}); name another folder.")
    if "does not recognize this architecture" in text:
        return UnsupportedModel(
            f"The model in {name} is of a kind that transformers {transformers.__version__} does not know; "
            "where it brings its own code give trust_remote_code=True, else update transformers."
        )
    if "Unrecognized configuration class" in text:
        return UnsupportedModel(
            f"{name} is not a causal language model ({reason[:160]}); name a decoder-only one."
        )
    if isinstance(error, OSError) and not Path(name).is_dir():
        return InvalidInput(
            f"{name} is neither a folder here nor a model that the hub gave ({reason[:160]}); check the name."
        )
    if instead := placeholder(Path(name) / "config.json"):
        return InvalidInput(f"config.json in {name} {instead}.")
    return InvalidInput(f"The model in {name} could not be read ({reason[:200]}); download it again.")
