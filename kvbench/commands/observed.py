"""What `kvbench plan` prints of prompts to observe."""

from __future__ import annotations

from rich.table import Table

from kvbench.observations import stored
from kvbench.planning.plan import Job


def table(jobs: list[Job]) -> Table:
    """One row a model and benchmark: prompts, observed and missing."""
    found = Table(title=f"store {jobs[0].config['store']}, observations", title_justify="left")
    found.add_column("prompts of")
    for column in ("prompts", "observed", "missing"):
        found.add_column(column, justify="right")
    for job in jobs:
        if job.limit is None:
            found.add_row(job.title, "all", "?", "?")
        else:
            left = stored.missing(job, job.limit)
            found.add_row(job.title, str(job.limit), str(job.limit - left), str(left))
    return found
