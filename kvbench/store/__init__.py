"""The store: what a run leaves on disk, and how to read it back.  Nothing here imports torch."""

from kvbench.store.files import canonical, write_atomic
from kvbench.store.journal import Writer
from kvbench.store.layout import Cell, cells, group_folder, journal_path, write_cell
from kvbench.store.responses import (
    Responses,
    failures,
    load_folder,
    load_responses,
    pack_kept,
    provenance,
    unpack_kept,
    write_result,
)

__all__ = [
    "Cell",
    "Responses",
    "Writer",
    "canonical",
    "cells",
    "failures",
    "group_folder",
    "journal_path",
    "load_folder",
    "load_responses",
    "pack_kept",
    "provenance",
    "unpack_kept",
    "write_atomic",
    "write_cell",
    "write_result",
]
