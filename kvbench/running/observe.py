"""``kvbench observe``: measure what is missing of a model on a benchmark, one prefill a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kvbench.errors import UserError
from kvbench.observations import stored
from kvbench.planning.plan import Job
from kvbench.running.progress import Progress
from kvbench.support.words import counted

UNKNOWN = "which tokens hold the answer is not known, so there is nothing to say about evidence"


def observe(jobs: list[Job], log: Callable[[str], None] = print) -> None:
    """Measure and store what is missing; a model is loaded only then.

    Raises UserError for jobs that are spread over machines, for samples that cannot be observed, and when the
    store cannot be written.
    """
    for job in jobs:
        if job.config["shards"] != 1 or job.config["launcher"]:
            raise UserError("prompts are observed here, in one process: leave launcher= and shards= out.")
        if job.config["prompt"] != "default":
            raise UserError("prompts are observed in the task's own words: leave prompt= out.")
    for job in jobs:
        _observe(job, log)


def _observe(job: Job, log: Callable[[str], None]) -> None:
    from kvbench.running import run

    model, name = stored.names(job)
    if job.limit is None or stored.missing(job, job.limit):
        benchmark = run.load_benchmark(job.config["benchmark"])
        known = stored.read(stored.path(job), stored.settings(job))["samples"]
        todo = [i for i in benchmark.order[: benchmark.count(job.limit)] if str(i) not in known]
        if todo:
            adapter = run.load_model(job.config["model"])
            found = of_samples(adapter, benchmark, todo, job.config["model"].get("window"), log)
            stored.fill(stored.path(job), stored.settings(job), found)
    samples = stored.in_order(stored.read(stored.path(job), stored.settings(job)))
    marked = sum("attended" in values for values in samples)
    note = "" if marked else f"; {UNKNOWN}"
    log(f"{model} / {name}: {counted(len(samples), 'prompt')} observed{note}")


def of_samples(
    adapter: Any, benchmark: Any, indices: list[int], window: int | None, log: Callable[[str], None]
) -> Iterator[tuple[int, stored.Values]]:
    """(index, values) of these samples. window: the model's observation window; None: the usual one."""
    from kvbench.methods.registry import USUAL_WINDOW
    from kvbench.observations.pages import known

    about = known(benchmark.cfg) if hasattr(adapter, "box_tokens") else []
    clusters = benchmark.clusters(indices)
    first = benchmark.order[0]
    with Progress(f"{adapter.name} / {benchmark.name}", len(indices), 0, log) as progress:
        for sample in benchmark.at(indices):
            index = sample.index
            page = about[index] if about else None
            try:
                values = of_sample(adapter, benchmark, sample, page, window or USUAL_WINDOW, index == first)
            except UserError as error:
                raise UserError(f"sample {index} of {benchmark.name} cannot be observed: {error}") from error
            yield index, {"page": clusters[index], **values}
            progress.advance()


def of_sample(
    adapter: Any, benchmark: Any, sample: Any, page: dict[str, Any] | None, window: int, project: bool
) -> dict[str, Any]:
    """Values of one sample. page: where its evidence is, see ``pages``; project: with the keys as points."""
    import torch

    from kvbench import engine
    from kvbench.engine.generate import observe as observation_of
    from kvbench.observations import evidence, keys, pages
    from kvbench.observations.recent import recent

    images = sample.images()
    with torch.inference_mode():
        inputs = benchmark.prepare(adapter, sample.text, images)
        tiles = inputs.visual_mask.nonzero().flatten()
        prompt = engine.prefill(adapter, inputs, window=max(window, evidence.QUERIES))
        observation = observation_of(prompt)
        found = {"length": prompt.length, "recent": recent(observation)}
        found |= keys.keys(observation) | keys.geometry(observation)
        if project:
            found["projection"] = keys.projection(observation)
        if page is not None:
            (image,) = images
            places = tiles[pages.evidence(adapter, page, image.size)]
            found |= evidence.looks(observation, tiles, places, window)
    return found
