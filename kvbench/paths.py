"""Where kvbench keeps what it fetched or built outside the repository."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Folder for converted weights and generated data: ``$KVBENCH_CACHE``, else ``~/.cache/kvbench``."""
    return Path(os.environ.get("KVBENCH_CACHE") or Path.home() / ".cache" / "kvbench").expanduser()


def conf_dir() -> Path:
    """Folder of the Hydra configs: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    return package / "conf" if (package / "conf").is_dir() else package.parent / "conf"


# Data and weights that are no folder of the user's, whatever lies in the current one.
BUILT_IN = ("", "None", "random", "shipped", "embedded", "sets", "micro", "package")


def is_folder(text: str) -> bool:
    """Whether a data or weights setting names a folder, there or not, rather than a hub id."""
    if text in BUILT_IN:
        return False
    return text.startswith(("/", ".", "~")) or Path(text).expanduser().is_dir()
