"""Find a checkpoint and read its config, so that what is wrong is said before any weight is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbench.errors import UserError


def locate(weights: str, revision: str | None) -> None:
    """Make sure that the checkpoint's config can be read: in a folder, in the local cache, or on the hub.

    Raises UserError that says what is missing: the folder, the checkpoint, its revision or its licence.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RevisionNotFoundError,
    )

    folder = Path(weights).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise UserError(f"{weights} holds no config.json: set model.weights to a checkpoint's folder.")
        return
    get = f"download it with `hf download {weights}" + (f" --revision {revision}`" if revision else "`")
    missing = f"cannot find the checkpoint {weights}: {get}, or set model.weights to a folder that holds it."
    try:
        hf_hub_download(weights, "config.json", revision=revision)
    except RevisionNotFoundError as error:
        raise UserError(
            f"{weights} has no revision {revision}: set model.revision to a branch, tag or commit it has."
        ) from error
    except GatedRepoError as error:
        raise UserError(
            f"{weights} asks for its licence to be accepted: do so on its page, then `hf auth login`."
        ) from error
    except LocalEntryNotFoundError as error:
        have = cached_revisions(weights)
        if have:
            raise UserError(
                f"revision {revision or 'main'} of {weights} is not on this machine ({', '.join(have)} is): "
                f"{get}, or set model.revision."
            ) from error
        raise UserError(missing) from error
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise UserError(missing) from error


def cached_revisions(weights: str) -> list[str]:
    """Branches, tags and commits of a checkpoint that the local cache holds."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=weights, repo_type="model")
    refs = [p.relative_to(folder / "refs").as_posix() for p in folder.glob("refs/**/*") if p.is_file()]
    return sorted(refs) + sorted(p.name for p in folder.glob("snapshots/*") if (p / "config.json").exists())


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


def check_layers(name: str, config: Any) -> None:
    """Raise UserError, naming them, when decoder layers are anything but full causal attention."""
    text = config.get_text_config(decoder=True)
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


def first_line(error: BaseException) -> str:
    """What an exception says, up to its first line break."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
