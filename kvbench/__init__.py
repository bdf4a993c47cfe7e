"""kvbench: a benchmark harness for KV-cache compression of multimodal language models."""

__version__ = "0.1.0"
__all__ = ["compare", "generate", "load", "register", "results", "select", "wrap"]


def __getattr__(name: str):
    if name == "select":  # needs torch: loaded on first use
        from kvbench.methods import plugins
        from kvbench.methods.select import select

        plugins.installed()

        return select
    if name in ("compare", "generate", "load", "results", "wrap"):
        from kvbench import api

        return getattr(api, name)
    if name == "register":
        from kvbench.methods.plugins import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
