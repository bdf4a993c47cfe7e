"""Find a checkpoint and read its config, so that what is wrong is said before any weight is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbench import hub
from kvbench.errors import UserError, first_line
from kvbench.paths import is_folder


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
