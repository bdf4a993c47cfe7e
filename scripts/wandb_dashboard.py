"""Build the W&B dashboard of a store that was tracked (tracking=wandb tracking.mode=online).

    python scripts/wandb_dashboard.py runs/table1 --entity TEAM --project kvbench

One section a benchmark: a bar plot of every metric, methods and budgets as bars, then the results and the
samples with their pictures; traces last. Needs wandb-workspaces (`pip install "kvbench[dashboard]"`) and a
login. `--show` prints the sections and saves nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvbench.analysis.results import entries, rows
from kvbench.errors import UserError
from kvbench.running.tracking import metric_name


def workspace(store: Path, entity: str, project: str):
    """The unsaved workspace. Raises UserError when nothing is scored."""
    import wandb_workspaces.reports.v2 as blocks
    import wandb_workspaces.workspaces as workspaces

    found = rows(entries(store))
    if not found:
        raise UserError(f"nothing is scored in {store}: call `kvbench score store={store}` first.")
    sections = []
    for benchmark in dict.fromkeys(row["benchmark"] for row in found):
        mine = [row for row in found if row["benchmark"] == benchmark]
        panels = [
            blocks.BarPlot(
                title=f"{benchmark}: {metric}",
                metrics=list(
                    dict.fromkeys(f"{metric_name(row)}/value" for row in mine if row["metric"] == metric)
                ),
            )
            for metric in dict.fromkeys(row["metric"] for row in mine)
        ]
        sections.append(workspaces.Section(name=benchmark, panels=panels, is_open=True))
    tables = [blocks.WeavePanelSummaryTable(table_name=name) for name in ("results", "samples")]
    sections.append(workspaces.Section(name="results and samples", panels=tables))
    if any(store.glob("*/*/traces/*")):
        panels = [blocks.MediaBrowser(title="drift, thresholds and refreshes")]
        sections.append(workspaces.Section(name="traces", panels=panels))
    return workspaces.Workspace(
        entity=entity, project=project, name=f"kvbench {store.name}", sections=sections
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--entity", required=True, help="W&B user or team")
    parser.add_argument("--project", default="kvbench")
    parser.add_argument("--show", action="store_true", help="print the sections, save nothing")
    given = parser.parse_args(arguments)
    try:
        board = workspace(given.store, given.entity, given.project)
    except ImportError:
        print(
            'wandb_dashboard: wandb-workspaces is missing: pip install "kvbench[dashboard]".', file=sys.stderr
        )
        return 2
    except UserError as error:
        print(f"wandb_dashboard: {error}", file=sys.stderr)
        return 2
    for section in board.sections:
        print(f"{section.name}: {len(section.panels)} panels")
    if not given.show:
        print(board.save().url)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
