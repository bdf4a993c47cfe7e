"""The generate stage of one job: every missing answer, sample by sample, into the journal.

All cells of a job share a sample's prefill.  The model is loaded only when something is missing, so a
finished job costs one read of its journal.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench import memory, store
from kvbench.errors import UserError
from kvbench.identity import provenance
from kvbench.planning.plan import Job
from kvbench.running.progress import Progress
from kvbench.running.tries import Tries, prefetched
from kvbench.setup import doctor
from kvbench.support.words import counted

# The engine's settings under which no branch shares a step, nor a cache's shape, with another.
ONE_BY_ONE = {"max_branch_bytes": 0, "cache": "compact"}
# The model of the last job.  A sweep visits one model with several benchmarks; loading it once is enough.
_loaded: dict[str, Any] = {}


@dataclass(frozen=True)
class Outcome:
    """What a job came to, in answers (cell × sample)."""

    title: str
    cells: int
    samples: int
    done: int
    new: int
    failed: int
    first_error: str = ""
    excluded: int = 0  # samples left out of all cells, as benchmark.unreadable=exclude asks

    @property
    def missing(self) -> int:
        return self.cells * self.samples - self.done

    def sentence(self) -> str:
        text = f"{self.title}: {counted(self.cells, 'cell')} x {counted(self.samples, 'sample')}, "
        text += f"{counted(self.done, 'answer')}, {self.new} new"
        if self.failed:
            text += f", {self.failed} FAILED (first: {self.first_error})"
        elif self.missing:
            text += f", {self.missing} missing"
        if self.excluded:
            text += f", {counted(self.excluded, 'sample')} left out of all cells"
        return text


def load_model(config: dict[str, Any]) -> Any:
    """The adapter of a model config, kept until another config asks."""
    key = store.canonical(config)
    if key not in _loaded:
        from transformers.utils import logging

        from kvbench import models

        logging.disable_progress_bar()  # one bar is enough: ours
        _loaded.clear()
        gc.collect()  # a compiled step and its model hold each other
        memory.give_back()
        _loaded[key] = models.load(config)
    return _loaded[key]


def load_benchmark(config: dict[str, Any]) -> Any:
    """The benchmark of a benchmark config. Raises UserError when its data or a video reader is missing."""
    from kvbench import benchmarks
    from kvbench.benchmarks import needs

    for sentence in needs.missing(config, only=("video",)):
        raise UserError(sentence)
    return benchmarks.load(config)


def build_method(spec: dict[str, Any], budget: int | None, offload: bool = False) -> Any:
    """The method of a cell, ready for the engine; ``offload`` concerns those that refresh."""
    from kvbench import methods

    if "refresh" in spec:
        spec = {**spec, "refresh": {**spec["refresh"], "offload": offload}}
    return methods.build(spec, budget)


def generate(
    adapter: Any, inputs: Any, methods: list[Any], benchmark: Any, trace: bool = False, **settings: Any
) -> list[Any]:
    """One answer per method to one prompt, with its trace when asked for; `settings` are the engine's."""
    from kvbench import engine

    ends = {"max_new_tokens": benchmark.max_new_tokens, "until": benchmark.until}
    return engine.generate(adapter, inputs, methods, trace=trace, **{**ends, **settings})


def run_job(job: Job, command: list[str], log: Callable[[str], None] = print) -> Outcome:
    """Compute what a job lacks and write its results.  Raises UserError when it cannot start or go on."""
    # A folder that is new stays so until all is loaded: no trace of a version that could not be.
    ready = None if store.layout.journals(job.folder) else (_questions(job, log), _load(job, log))
    with store.Writer(job.journal, job.config["sync"]) as writer:
        for notice in writer.notices:
            log(notice)
        responses = store.load_folder(job.folder, own=(job.journal, writer.records), cells=job.cells)
        indices = job.indices()
        new = 0
        if indices is not None and job.group not in responses.sizes:
            _note_size(job, writer, responses)
        if not indices or _pending(job, responses, indices) or _lost(job, writer, responses):
            new, indices = _generate_missing(job, ready, writer, responses, command, log)
        else:
            store.write_cells(job.cells, job.folder)
        writer.flush()
        responses = store.write_results(job.cells, job.folder)
    return _outcome(job, responses, indices, new)


def stored(job: Job, read: Callable[[Path], store.Responses] = store.load_folder) -> Outcome | None:
    """What the store holds of a job; None when no session has seen how many samples there are.

    ``read`` gives what the journals of a folder say.
    """
    indices = job.indices()
    return None if indices is None else _outcome(job, read(job.folder), indices, new=0)


def all_stored(jobs: Sequence[Job]) -> list[Outcome | None]:
    """``stored`` of each job; the shards of a benchmark stand together and share one reading."""
    read = functools.lru_cache(maxsize=1)(store.load_folder)
    return [stored(job, read) for job in jobs]


def unknown(job: Job) -> Outcome:
    """The outcome of a job that never came to counting its samples: at least one is missing."""
    return Outcome(job.title, cells=len(job.cells), samples=1, done=0, new=0, failed=0)


def _outcome(job: Job, responses: store.Responses, indices: list[int], new: int) -> Outcome:
    wanted = set(_counted(job, responses, indices))
    failed = [
        record
        for cell in job.cells
        for index, record in sorted(responses.failed(cell.digest).items())
        if index in wanted
    ]
    return Outcome(
        title=job.title,
        cells=len(job.cells),
        samples=len(wanted),
        excluded=len(indices) - len(wanted),
        done=sum(len(wanted & store.done(cell, responses, job.config["trace"])) for cell in job.cells),
        new=new,
        failed=len(failed),
        first_error="{type}: {message}".format(**failed[0]["error"]) if failed else "",
    )


def _require(job: Job) -> None:
    """Say within seconds that a checkpoint or data are missing: nothing heavy is imported for it."""
    doctor.require(job.config["model"], job.config["benchmark"])


def _lost(job: Job, writer: store.Writer, responses: store.Responses) -> bool:
    """Whether damage took the circumstances of answers: a new session may tell them again."""
    return bool(writer.notices) and any(responses.orphans(cell.digest) for cell in job.cells)


def _counted(job: Job, responses: store.Responses, indices: list[int]) -> list[int]:
    """Those of the samples that are not left out; ``unreadable=stop`` tries each once more."""
    out = responses.excluded() if job.config["benchmark"].get("unreadable") == "exclude" else {}
    return [index for index in indices if index not in out]


def _pending(job: Job, responses: store.Responses, indices: list[int]) -> dict[int, list[store.Cell]]:
    """Sample index -> cells that lack an answer to it, or the trace of it that the job asks for."""
    done = {cell.digest: store.done(cell, responses, job.config["trace"]) for cell in job.cells}
    asked = _counted(job, responses, indices)
    pending = {index: [c for c in job.cells if index not in done[c.digest]] for index in asked}
    return {index: cells for index, cells in pending.items() if cells}


def _note_size(job: Job, writer: store.Writer, responses: store.Responses) -> None:
    """Earlier releases noted how many samples were asked of all seeds and prompts alike: say it of ours."""
    taken = set((store.order(job.folder, job.cells[0].config["benchmark"]) or [])[: job.limit])
    answered = {index for cell in job.cells for index in responses.answers[cell.digest]}
    if answered <= taken:  # none says that more was asked
        record = store.size_record(job.group, job.limit, len(taken))
        writer.append([record])
        responses.add(record, writer.path)


def _generate_missing(
    job: Job,
    ready: tuple[Any, Any] | None,
    writer: store.Writer,
    responses: store.Responses,
    command: list[str],
    log: Callable[[str], None],
) -> tuple[int, list[int]]:
    """Answer every missing (cell, sample).  Returns the number of new answers and the sample indices."""

    def record(records: list[dict[str, Any]]) -> None:
        writer.append(records)
        for entry in records:
            responses.add(entry, writer.path)

    benchmark, every = ready[0] if ready else _questions(job, log)
    indices = job.own(benchmark.order)
    own = set(indices)
    samples = [sample for sample in every if sample.index in own]
    pending = _pending(job, responses, indices)
    if not pending and not _lost(job, writer, responses):
        _note(job, benchmark, every, responses, record)
        return 0, indices
    adapter, methods = ready[1] if ready else _load(job, log)
    _note(job, benchmark, every, responses, record)
    run = _environment(job, command, adapter)
    record([store.run_record(run)])
    ask = _asking(job, adapter, benchmark, log)
    session = store.session_of(run)
    tries = Tries(job, adapter, methods, ask, benchmark, record, responses, session, log)
    new = 0
    todo = [sample for sample in samples if sample.index in pending]
    with Progress(job.title, len(samples), len(samples) - len(todo), log) as progress:
        for sample, images in prefetched(todo):
            answers, whole = tries.answer(sample, images, pending[sample.index])
            new += answers
            if not whole and job.config["fail_fast"]:
                log(f"{job.title}: stopped at sample {sample.index}, as fail_fast=true asks.")
                break
            progress.advance()
    return new, indices


def _questions(job: Job, log: Callable[[str], None]) -> tuple[Any, list[Any]]:
    """The benchmark, and the samples that are asked of all shards together; says how many they are."""
    _require(job)
    benchmark = load_benchmark(job.config["benchmark"])
    every = benchmark.samples(job.limit)
    if not every:
        raise UserError(f"benchmark {job.config['benchmark']['name']} has no samples: check its data.")
    log(_asked(job, benchmark, [sample.index for sample in every]))
    if not job.own(benchmark.order):
        raise UserError(
            f"shard {job.config['shard']} of {job.config['shards']} has no sample: "
            f"use at most {counted(len(every), 'shard')} for {counted(len(every), 'sample')}."
        )
    return benchmark, every


def _asked(job: Job, benchmark: Any, indices: list[int]) -> str:
    """``embedded / docqa_mini: 40 samples about 20 pictures``."""
    name = f"{job.config['model']['name']} / {job.config['benchmark']['name']}"
    about = counted(len(set(benchmark.clusters(indices).values())), benchmark.about)
    return f"{name}: {counted(len(indices), 'sample')} about {about}"


def _note(
    job: Job,
    benchmark: Any,
    every: list[Any],
    responses: store.Responses,
    record: Callable[[list[dict[str, Any]]], None],
) -> None:
    """Store what is asked, once all that it needs is loaded: samples, cells, how many the limit gives.

    Summaries and later runs read the folder: what it holds must not depend on the moment of a crash.
    """
    identity = job.cells[0].config["benchmark"]
    ids = {sample.index: sample.id for sample in every}
    store.record_samples(job.folder, identity, benchmark.order, ids)
    store.write_cells(job.cells, job.folder)
    if responses.sizes[job.group].get(job.limit) != len(every):
        record([store.size_record(job.group, job.limit, len(every))])


def _load(job: Job, log: Callable[[str], None]) -> tuple[Any, dict[str, Any]]:
    """The model, and the methods by the digests of their cells, which go with it."""
    if sentence := doctor.headless(job.config["model"], job.specs.values()):
        raise UserError(sentence)
    offload = job.config["offload"]
    methods = {cell.digest: build_method(job.specs[cell.digest], cell.budget, offload) for cell in job.cells}
    if store.canonical(job.config["model"]) not in _loaded:
        log(f"loading {job.config['model']['name']}")
    adapter = load_model(job.config["model"])
    for method in methods.values():
        if getattr(method, "refresh", None) is not None:
            method.refresh.check_model(adapter.head_dim)
    return adapter, methods


def _asking(job: Job, adapter: Any, benchmark: Any, log: Callable[[str], None]) -> Callable[..., list[Any]]:
    """What answers a prompt with several methods as the job has it; one that fails leaves its exception."""
    usual = {"trace": job.config["trace"], "max_branch_bytes": job.config["max_branch_bytes"], "log": log}
    if job.config["decode"]["compile"]:
        usual["compiled"] = True
    if job.config["decode"]["invariant"]:
        usual |= ONE_BY_ONE

    def ask(inputs: Any, methods: list[Any], **settings: Any) -> list[Any]:
        settings = {**usual, "return_exceptions": True, **settings}
        return generate(adapter, inputs, methods, benchmark, **settings)

    return ask


def _environment(job: Job, command: list[str], adapter: Any) -> dict[str, Any]:
    """What a session says of the answers it will give."""
    run = provenance.collect(command, job.config["seed"], *_placement(adapter))
    run |= _threads(adapter)
    how = ["compiled"] if job.config["decode"]["compile"] else []
    if run["dtype"] in ("bfloat16", "float16"):  # whose sums round by the shape of the batch
        together = f"up to {len(job.cells)} together"
        how.append("one branch at a time" if job.config["decode"]["invariant"] else together)
    if how:
        run["versions"]["decode"] = ", ".join(how)
    return run


def _threads(adapter: Any) -> dict[str, int]:
    """On a CPU, the threads that share its sums."""
    if getattr(getattr(adapter.model, "device", None), "type", None) != "cpu":
        return {}
    import torch

    return {"threads": torch.get_num_threads()}


def _placement(adapter: Any) -> tuple[str, str]:
    """Device type and dtype of the adapter's model."""
    model = getattr(adapter, "model", None)
    device = str(getattr(model, "device", "none")).partition(":")[0]
    if device == "cuda":
        import torch

        device = torch.cuda.get_device_name(model.device)
    return device, str(getattr(model, "dtype", "none")).removeprefix("torch.")
