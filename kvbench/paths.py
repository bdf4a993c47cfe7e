"""Where kvbench keeps what it fetched or built outside the repository."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Folder for converted weights and generated data: ``$KVBENCH_CACHE``, else ``~/.cache/kvbench``."""
    return Path(os.environ.get("KVBENCH_CACHE") or Path.home() / ".cache" / "kvbench").expanduser()


def conf_dir() -> Path:
    """Folder of the Hydra configs, beside the package in a checkout."""
    return Path(__file__).resolve().parent.parent / "conf"
