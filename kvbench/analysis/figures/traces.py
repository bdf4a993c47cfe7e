"""What refresh policies did: drift and refreshed fraction by decode step, thresholds, refreshed fraction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvbench.analysis import policies as analysed
from kvbench.analysis.figures.style import colour, grid, legend

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

MOST_STEPS = 256  # later steps hold few samples


def trace_figures(
    samples: pandas.DataFrame, thresholds: pandas.DataFrame, traces: pandas.DataFrame
) -> Iterator[tuple[str, Figure]]:
    """(name, figure) per model, benchmark and first selection; frames of ``kvbench.analysis.drift``."""
    for (model, benchmark, selection), mine in samples.groupby(
        ["model", "benchmark", "selection"], sort=False
    ):
        policies = list(dict.fromkeys(mine["policy"]))
        names = dict(zip(mine["cell"], mine["policy"], strict=True))
        here = traces[traces["cell"].astype(str).isin(names)]
        title = f"{model}-{benchmark}-{selection.replace(' ', '-')}"
        if len(here):
            yield f"drift-{title}", _by_step(here, names, policies, f"{benchmark}, {selection}")
        if mine["refreshed"].notna().any():
            yield f"refreshed-{title}", _refreshed(mine, policies, f"{benchmark}, {selection}")
        keys = (thresholds["model"] == model) & (thresholds["benchmark"] == benchmark)
        tau = thresholds[keys & (thresholds["selection"] == selection)]
        if len(tau):
            yield f"tau-{title}", _tau(tau, policies, f"{benchmark}, {selection}")


def _by_step(traces: pandas.DataFrame, names: dict[str, str], policies: list[str], title: str) -> Figure:
    frame = traces[traces["step"] < MOST_STEPS].assign(policy=traces["cell"].astype(str).map(names))
    means = frame.groupby(["policy", "step"], sort=True)[["drift", "refreshed"]].mean()
    figure, axes = grid(1, 2, 3.2, 2.3)
    for panel, what in zip(axes[0], ("drift", "refreshed"), strict=True):
        for policy in policies:
            if policy in means.index:
                line = means.loc[policy][what]
                panel.plot(line.index, line, color=colour(policy, policies), linewidth=1, label=policy)
        panel.set_xlabel("decode step")
    axes[0, 0].set_title(f"{title}\nattention mass on evicted entries")
    axes[0, 1].set_title("\nshare of layers refreshed")
    legend(figure, axes)
    return figure


def _refreshed(samples: pandas.DataFrame, policies: list[str], title: str) -> Figure:
    """Share of layer-steps refreshed with its 95 % interval (samples resampled by cluster)."""
    figure, axes = grid(1, 1, 3.2, 0.22 * len(policies) + 0.8)
    panel = axes[0, 0]
    for row, policy in enumerate(policies):
        found = analysed.mean(analysed.of(samples, policy), "refreshed", "layer_steps")
        shade = colour(policy, policies)
        panel.plot((found["low"], found["high"]), (row, row), color=shade, linewidth=1.2)
        panel.plot([found["value"]], [row], "o", color=shade, markersize=4)
    panel.set_yticks(range(len(policies)), policies)
    panel.invert_yaxis()
    panel.set_xlabel("refreshed fraction of layer-steps")
    panel.set_title(title)
    return figure


def _tau(tau: pandas.DataFrame, policies: list[str], title: str) -> Figure:
    """Mean threshold by step, the middle half and the middle 80 % of the samples as bands."""
    figure, axes = grid(1, 1, 3.6, 2.3)
    panel = axes[0, 0]
    for policy in dict.fromkeys(tau["policy"]):
        mine, shade = tau[(tau["policy"] == policy) & (tau["step"] < MOST_STEPS)], colour(policy, policies)
        panel.plot(mine["step"], mine["mean"], color=shade, linewidth=1.2, label=policy)
        for low, high in (("q25", "q75"), ("q10", "q90")):
            panel.fill_between(
                mine["step"].astype(float), mine[low], mine[high], color=shade, alpha=0.12, lw=0
            )
    panel.set_xlabel("decode step")
    panel.set_ylabel("threshold τ")
    panel.set_title(title)
    legend(figure, axes)
    return figure
