"""Find a checkpoint and read its config, so that what is wrong is said before any weight is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from kvbench import memory
from kvbench.errors import UserError, first_line
from kvbench.paths import is_folder
from kvbench.support import hub


def locate(weights: str, revision: str | None) -> None:
    """Make sure that the checkpoint's config can be read: in a folder, in the local cache, or on the hub.

    Raises UserError that says what is missing: the folder, the checkpoint, its revision or its licence.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    if is_folder(weights):
        folder = Path(weights).expanduser()
        if not folder.is_dir():
            raise UserError(
                f"there is no folder {weights}: set model.weights to a checkpoint's folder or hub id."
            )
        if not (folder / "config.json").exists():
            raise UserError(f"{weights} holds no config.json: set model.weights to a checkpoint's folder.")
        _check_files(folder)
        return
    get = f"download it with `hf download {weights}" + (f" --revision {revision}`" if revision else "`")
    instead = f"{get}, or set model.weights to a folder that holds it."
    try:
        if isinstance(try_to_load_from_cache(weights, "config.json", revision=revision), str):
            return
        # One request: a download would try for half a minute to reach a hub that is not there.
        get_hf_file_metadata(hf_hub_url(weights, "config.json", revision=revision), timeout=5)
    except RevisionNotFoundError as error:
        raise UserError(
            f"{weights} has no revision {revision}: set model.revision to a branch, tag or commit it has."
        ) from error
    except GatedRepoError as error:
        raise UserError(
            f"{weights} asks for its licence to be accepted: do so on its page, then `hf auth login`."
        ) from error
    except Exception as error:  # no network, no such checkpoint, not a hub id: to be had elsewhere
        have = hub.cached("models", weights)
        if have:
            raise UserError(
                f"revision {revision or 'main'} of {weights} is not on this machine ({', '.join(have)} is): "
                f"{get}, or set model.revision."
            ) from error
        raise UserError(f"cannot find the checkpoint {weights} ({first_line(error)}): {instead}") from error


def read_config(name: str, weights: str, revision: str | None, types: tuple[str, ...] = ()) -> Any:
    """The checkpoint's config. `types`: the model types that the adapter reads; empty for any.

    Raises UserError when it is missing, of another type, or has layers that the engine cannot compress.
    """
    from transformers import AutoConfig

    locate(weights, revision)
    try:
        config = AutoConfig.from_pretrained(weights, revision=revision)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read the config of {weights} ({first_line(error)}): download it again."
        ) from (error)
    if types and config.model_type not in types:
        raise UserError(
            f"{weights} is a {config.model_type} checkpoint, but model {name} takes {' or '.join(types)}: "
            f"set model.weights to one, or choose another model."
        )
    check_layers(name, config)
    return config


def read_tokenizer(loader: Any, weights: str, revision: str | None) -> Any:
    """What ``loader``, AutoTokenizer or AutoProcessor, makes of a checkpoint.

    Raises UserError when its files are missing or damaged, which transformers answers in many ways.
    """
    try:
        return loader.from_pretrained(weights, revision=revision)
    except Exception as error:  # ValueError, OSError, KeyError, TypeError, ... of another library
        what = loader.__name__.removeprefix("Auto").lower()
        raise UserError(
            f"the {what} of {weights} is missing or damaged ({type(error).__name__}: {first_line(error)}):"
            " copy its files (tokenizer.json, tokenizer_config.json, ...) beside the weights, or download it"
            f" again with `hf download {weights}`."
        ) from error


def check_chat(name: str, reader: Any, system: str | None, instead: str = "", content: Any = "?") -> None:
    """Say once, before the first sample, that a tokenizer or processor cannot write the turns of a chat.

    A system prompt that the template refuses or leaves out is the user's to place: moved into the user's
    turn in silence, it would be another prompt. Raises UserError.
    """
    if not getattr(reader, "chat_template", None):
        raise UserError(
            f"model {name} has no chat template: put its chat_template.jinja beside the weights, take its "
            f"instruct version{', ' + instead if instead else ''}."
        )
    if system is None:
        return
    turns = [{"role": "system", "content": system}, {"role": "user", "content": content}]
    try:
        shown = system.strip() in reader.apply_chat_template(turns, tokenize=False)
    except Exception:  # jinja's, raised by the template itself or by what it asks of a turn
        shown = False
    if not shown:
        raise UserError(
            f"the chat template of model {name} takes no system prompt: set model.system_prompt=null, and "
            "put the words into the benchmark's prompt (benchmark.wording)."
        )


LFS = b"version https://git-lfs.github.com/spec/"


def _check_files(folder: Path) -> None:
    """Raise UserError for files that stand for others, or are shorter than they say."""
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        with file.open("rb") as stream:
            head = stream.read(len(LFS))
            if head == LFS:
                raise UserError(
                    f"{file} is a Git-LFS pointer in place of the file: run `git lfs pull` in its folder, or "
                    "download it with `hf download`."
                )
            if file.suffix != ".safetensors":
                continue
            stream.seek(0)
            size = _promised(stream)
        if size is None or size != file.stat().st_size:
            wanted = "" if size is None else f" of {size}"
            raise UserError(
                f"{file} is cut off or damaged ({file.stat().st_size} bytes{wanted}): download it again."
            )


def _promised(stream: BinaryIO) -> int | None:
    """Bytes of a safetensors file by its header: 8 for the header's length, the header, the tensors."""
    try:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(min(length, 100_000_000)))  # the format's own limit
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return 8 + length + max(ends, default=0)


def load_weights(model_class: Any, config: Any, weights: str, revision: str | None, **options: Any) -> Any:
    """The model of a checkpoint, all of it read from there. config: its own; options: dtype, ...

    Raises UserError when the checkpoint cannot be read, or does not hold exactly what its config asks for:
    transformers would fill layers that are missing with random numbers, and pass over those left.
    """
    try:
        model, told = model_class.from_pretrained(
            weights, revision=revision, output_loading_info=True, **options
        )
    except Exception as error:  # transformers, safetensors, pickle and each quantiser have their own
        if memory.ran_out(error):
            raise
        quantised = getattr(config, "quantization_config", None)
        if quantised is not None:
            method = getattr(quantised, "quant_method", None) or dict(quantised).get("quant_method", "?")
            raise UserError(
                f"the checkpoint {weights} is quantised ({method}) and cannot be loaded here "
                f"({first_line(error)}): take the unquantised checkpoint, or install what its method needs."
            ) from error
        raise UserError(
            f"the checkpoint {weights} cannot be read ({first_line(error)}): download it again with "
            f"`hf download`."
        ) from error
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    for what, keys in (
        ("lacks", set(told["missing_keys"]) - tied),
        ("holds what its config has no place for:", told["unexpected_keys"]),
        ("has another shape than its config for", {key for key, *_ in told.get("mismatched_keys") or ()}),
    ):
        if keys:
            raise UserError(
                f"the checkpoint {weights} {what} {_some(sorted(keys))}: download it again, with the "
                "config.json that belongs to it."
            )
    return model


def _some(keys: list[str], shown: int = 4) -> str:
    more = f" and {len(keys) - shown} more" if len(keys) > shown else ""
    return ", ".join(keys[:shown]) + more


def check_layers(name: str, config: Any) -> None:
    """Raise UserError, naming them, when decoder layers are anything but full causal attention."""
    text = config.get_text_config(decoder=True)
    cap = getattr(text, "attn_logit_softcapping", None)
    if cap is not None:
        raise UserError(
            f"model {name} caps its attention's logits at {cap}, which kvbench does not compute: take a "
            "model without attn_logit_softcapping."
        )
    kinds = getattr(text, "layer_types", None)
    window = getattr(text, "sliding_window", None)
    if kinds is None:
        kinds = ["sliding_attention" if window is not None else "full_attention"] * text.num_hidden_layers
    other = sorted(set(kinds) - {"full_attention"})
    if other:
        size = f" (window of {window})" if window is not None else ""
        raise UserError(
            f"model {name} has layers of kind {', '.join(other)}{size}, which kvbench cannot compress: "
            f"take a model whose layers are all full_attention."
        )
