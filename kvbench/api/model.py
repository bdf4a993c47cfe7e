"""Models: by a name of conf/model, by a checkpoint, or around one that is loaded already."""

from __future__ import annotations

from typing import Any

from kvbench.errors import UserError
from kvbench.paths import is_folder


class Model:
    """A model that answers through kvbench's cache. ``adapter``: what the engine works with."""

    def __init__(self, adapter: Any, window: int | None = None, before: tuple | None = None) -> None:
        self.adapter, self.window = adapter, window
        self._before = before

    @property
    def name(self) -> str:
        return self.adapter.name

    def unwrap(self) -> Any:
        """The transformers model as it was before ``wrap``. Raises UserError for one that was loaded here."""
        if self._before is None:
            raise UserError("only a model that kvbench.wrap was given can be unwrapped.")
        attention, training, gradients = self._before
        model = self.adapter.model
        model.config.get_text_config(decoder=True)._attn_implementation = attention
        model.train(training)
        for parameter, wanted in zip(model.parameters(), gradients, strict=True):
            parameter.requires_grad_(wanted)
        return model

    def __repr__(self) -> str:
        model = self.adapter.model
        kind, dtype = type(model).__name__, str(model.dtype).removeprefix("torch.")
        return f"Model({self.name!r}: {kind}, {dtype}, {self.adapter.device})"


def load(name: str, **options: Any) -> Model:
    """A model by a name of conf/model, by a folder, or by a hub id.

    options: keys of the model's config, as dtype="float32", device="cuda:0", weights=FOLDER.
    A checkpoint without a config of its own is read by its family's adapter, or as ``model=auto`` does. Its
    dtype is bfloat16 unless said. Raises UserError for what is missing or cannot be compressed.
    """
    from kvbench import models
    from kvbench.planning import compose
    from kvbench.setup import first

    with compose.session():
        known = compose.choices("model")
        named = name in known
        if not named and "/" not in name and not is_folder(name):
            from kvbench.checks import suggest

            raise UserError(f"there is no model {name!r}, nor such a folder: {suggest(name, known)}")
        given = options if named else {"weights": name, **options}
        words = [f"model={name if named else 'auto'}"]
        composed = compose.plain(compose.compose(words), resolve=False)["model"]
        if unknown := sorted(set(given) - set(composed)):
            raise compose.unknown_key(f"model.{unknown[0]}", [f"model.{key}" for key in composed])
        raw = compose.OmegaConf.create({"model": {**composed, **given}})
        config = compose.plain(raw, resolve=True)["model"]
        if first.language_model(config, print):
            config = compose.plain(raw, resolve=True)["model"]
    return Model(models.load(config), config.get("window"))


def wrap(model: Any, processor: Any, name: str | None = None, system_prompt: str | None = None) -> Model:
    """Around a transformers model that is loaded already; ``unwrap`` gives it back as it was.

    processor: its processor, or the tokenizer of a text model. The first prompt is held against
    ``model.generate``. Raises UserError for an architecture that cannot be compressed.
    """
    from kvbench.identity.revisions import last_part
    from kvbench.models import auto, family
    from kvbench.models.base import stop_tokens

    config = model.config
    name = name or last_part(getattr(config, "name_or_path", "") or config.model_type)
    auto.refuse(name, config)
    text = config.get_text_config(decoder=True)
    before = (text._attn_implementation, model.training, [p.requires_grad for p in model.parameters()])
    tokenizer = getattr(processor, "tokenizer", processor)
    shared = {"stop_ids": stop_tokens(model, tokenizer), "system": system_prompt}
    if tokenizer is processor:
        adapter = auto.AutoText(name, model, tokenizer, **shared)
    else:
        kind = family(config) or auto.AutoVision
        adapter = kind(name, model, tokenizer, **shared, processor=processor, options={})
    return Model(adapter, before=before)
