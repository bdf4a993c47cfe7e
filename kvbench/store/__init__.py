"""The store: what a run leaves on disk, and how to read it back.  Nothing here imports torch."""

from kvbench.store.files import canonical, write_atomic
from kvbench.store.journal import Writer
from kvbench.store.layout import (
    Cell,
    cells,
    check_versions,
    every_cell,
    group_folder,
    journal_path,
    write_cell,
    write_cells,
)
from kvbench.store.responses import (
    Responses,
    kept_summary,
    load_folder,
    load_responses,
    pack_kept,
    run_record,
    session_of,
    size_record,
    told,
    unpack_kept,
    write_results,
)
from kvbench.store.samples import order, record_samples
from kvbench.store.traces import done, each_trace, load_traces, write_trace

__all__ = [
    "Cell",
    "Responses",
    "Writer",
    "canonical",
    "cells",
    "check_versions",
    "done",
    "each_trace",
    "every_cell",
    "group_folder",
    "journal_path",
    "kept_summary",
    "load_folder",
    "load_responses",
    "load_traces",
    "order",
    "pack_kept",
    "run_record",
    "session_of",
    "size_record",
    "record_samples",
    "told",
    "unpack_kept",
    "write_atomic",
    "write_cell",
    "write_cells",
    "write_results",
    "write_trace",
]
