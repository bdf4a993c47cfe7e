"""Whatever happens to a run, the same command ends in the same bytes and computes nothing twice.

Runs are real processes (forked, so that each starts in milliseconds) of the ``kvbench`` command on fakes.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest

from kvbench.planning import compose, plan

GRID = ["run", "-m", "method=fullkv,snapkv,adakv+bacon", "budget=128,64", "method.window=16", "limit=12"]
GRID += ["benchmark=fake_qa,fake_text", "store=runs"]
CELLS, SAMPLES = 5, 24  # cells of a pass; passes of the whole grid
REQUEUE = 75


@pytest.fixture(scope="module", autouse=True)
def imported():
    """What every run needs, loaded and composed once before the forks."""
    import kvbench.running.launch  # noqa: F401

    with compose.session():
        plan.jobs([word for word in fakes.command(*GRID)[1:] if word != "-m"], multirun=True)
        yield


class Runs:
    """A folder in which the same command runs again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "log").touch()

    def start(self, *more: str, before=None, **environment: str) -> int:
        """Fork a run; returns its process id."""
        pid = os.fork()
        if pid:
            return pid
        code = 99
        try:
            os.chdir(self.folder)
            os.environ.update({"FAKE_LOG": str(self.folder / "log"), **environment})
            file = open("errors", "a", buffering=1)  # noqa: SIM115 - until the process ends
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            sys.stdout = sys.stderr = file  # pytest's own do not write to these descriptors
            fakes.install()
            if before is not None:
                before()
            code = fakes.kvbench(*GRID, *more)
        finally:
            os._exit(code)

    def run(self, *more: str, before=None, **environment: str) -> int:
        """Run to the end; returns the exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.start(*more, before=before, **environment), 0)[1])

    def answers(self) -> int:
        return sum(path.read_bytes().count(b'"text"') for path in self.folder.glob("runs/*/*/journal*.jsonl"))

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text()

    def passes(self) -> int:
        """Samples generated so far, however often."""
        return (self.folder / "log").read_text().count("sample ")

    def results(self) -> dict[str, bytes]:
        files = [*self.folder.glob("runs/*/*/results/*"), *self.folder.glob("runs/*/*/cells/*")]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    @property
    def journal(self) -> Path:
        return self.folder / "runs/fake/fake_qa/journal.jsonl"


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> dict[str, bytes]:
    """The files of an undisturbed run."""
    runs = Runs(tmp_path_factory.mktemp("calm") / "calm")
    assert runs.run() == 0
    assert runs.passes() == SAMPLES and len(runs.results()) == 4 * CELLS
    return runs.results()


@pytest.fixture
def runs(tmp_path) -> Runs:
    return Runs(tmp_path / "storm")


def test_fifty_kills(tmp_path, calm):
    """SIGKILL at 50 seeded random moments; what is done again is at most the sample in hand."""
    dice = random.Random(20)
    kills, storms, again = 0, 0, 0
    began = time.monotonic()
    assert Runs(tmp_path / "timed").run(FAKE_SLEEP="0.004") == 0
    length = time.monotonic() - began
    while kills < 50:
        storms += 1
        runs, here = Runs(tmp_path / str(storms)), 0
        while True:
            pid = runs.start(FAKE_SLEEP="0.004")
            if kills < 50:
                time.sleep(dice.random() * length)
                os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code == 0:
                break
            assert code == -signal.SIGKILL, runs.errors
            kills, here = kills + 1, here + 1
        assert runs.results() == calm
        assert SAMPLES <= runs.passes() <= SAMPLES + here
        again += runs.passes() - SAMPLES
    assert kills == 50
    print(f"{kills} kills survived in {storms} runs of {SAMPLES} samples; {again} samples done again")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_preemption_signal_leaves_with_a_code_of_its_own(runs, calm, name):
    pid = runs.start(FAKE_SLEEP="0.05")
    while runs.answers() < 3 * CELLS:
        time.sleep(0.002)
    os.kill(pid, getattr(signal, name))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == REQUEUE
    assert f"stopped by {name}; the same command continues" in runs.errors and "Traceback" not in runs.errors
    assert runs.journal.read_bytes()[-1:] == b"\n", "the journal ends with a whole record"
    assert runs.run() == 0
    assert runs.results() == calm and runs.passes() <= SAMPLES + 1


def test_two_workers_on_one_shard(runs, calm):
    first = runs.start(FAKE_SLEEP="0.5")
    while runs.answers() < CELLS:
        time.sleep(0.002)
    assert runs.run("benchmark=fake_qa") == 2
    assert "another kvbench process is writing" in runs.errors
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 0
    assert runs.results() == calm and runs.passes() == SAMPLES


def test_workers_on_all_shards_at_once(runs, calm):
    pids = [runs.start("shards=3", f"shard={i}", FAKE_SLEEP="0.01") for i in (2, 0, 1)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0], runs.errors
    assert runs.results() == calm and runs.passes() == SAMPLES


def test_a_truncated_journal(runs, calm):
    assert runs.run() == 0
    whole = runs.journal.read_bytes()
    dice = random.Random(4)
    for _ in range(5):
        length = dice.randrange(len(whole))
        before, passes = whole[:length].count(b'"text"'), runs.passes()
        runs.journal.write_bytes(whole[:length])
        assert runs.run() == 0, runs.errors
        assert runs.results() == calm
        assert (runs.passes() - passes) <= 12 - before // CELLS, "only what was cut off is computed"


def test_flipped_bits(runs, calm):
    """Any bit of the journal: the record is named, set aside and done again, and no other one."""
    assert runs.run() == 0
    dice = random.Random(5)
    for turn in range(8):
        damaged = bytearray(runs.journal.read_bytes())
        # The first time in the record that tells the circumstances of all answers after it.
        place = dice.randrange(len(damaged) - 1) if turn else damaged.index(b'"run"') + 2
        damaged[place] ^= 1 << dice.randrange(8)
        runs.journal.write_bytes(damaged)
        passes = runs.passes()
        assert runs.run() == 0, runs.errors
        assert "damaged and moved to journal.jsonl.damaged" in runs.errors
        assert runs.results() == calm
        assert runs.passes() - passes <= 2, "a lost newline costs two records"


def mounted(folder: Path, size: str) -> bool:
    """Whether this user may put a file system of its own there."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    return os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0


def test_a_full_disk(runs, calm):
    """No file may grow beyond a limit, as on a full disk; with room the same command continues."""

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))

    assert runs.run(before=full) == 2
    assert "choose a writable folder with free space" in runs.errors and "Traceback" not in runs.errors
    kept = runs.answers()
    assert 0 < kept < SAMPLES * CELLS
    assert runs.run() == 0
    assert runs.results() == calm
    assert runs.passes() <= SAMPLES + 2, "a pass whose record did not fit, per journal"


def test_a_full_file_system(tmp_path, calm):
    """The same on a file system of its own that is too small, where this user may mount one."""
    folder = tmp_path / "small"
    runs = Runs(folder)
    (folder / "runs").mkdir()
    if not mounted(folder / "runs", "64k"):
        pytest.skip("only root may mount")
    try:
        assert runs.run() == 2
        assert "No space left on device" in runs.errors and "Traceback" not in runs.errors
        assert runs.answers() > 0
        subprocess.run(["mount", "-o", "remount,size=8m", str(folder / "runs")], check=True)
        assert runs.run() == 0
        assert runs.results() == calm
    finally:
        subprocess.run(["umount", str(folder / "runs")], check=True)


def test_a_read_only_store(runs, calm):
    (runs.folder / "runs").write_text("")  # root may write into a read-only folder, but not below a file
    assert runs.run() == 2
    assert "cannot write" in runs.errors and "Traceback" not in runs.errors


def test_missing_permissions(runs, calm):
    """A user who may neither write the store nor read a journal."""
    assert runs.run("limit=3") == 0
    passes = runs.passes()

    def nobody():
        if os.geteuid() == 0:
            os.setuid(65534)

    for path, mode in ((runs.journal.parent, 0o555), (runs.journal, 0o000)):
        path.chmod(mode)
        runs.journal.with_name("journal.jsonl.lock").chmod(0o444)
        assert runs.run(before=nobody) == 2
    runs.journal.chmod(0o644)
    runs.journal.parent.chmod(0o755)
    runs.journal.with_name("journal.jsonl.lock").chmod(0o644)
    assert "(Permission denied): choose a writable folder" in runs.errors and "Traceback" not in runs.errors
    assert runs.passes() == passes
    assert runs.run() == 0 and runs.results() == calm


def test_a_file_system_that_turns_read_only(tmp_path, calm):
    """It says so, stays readable, and when it may be written again the same command continues."""
    from kvbench import cli

    runs = Runs(tmp_path / "small")
    (runs.folder / "runs").mkdir()
    if not mounted(runs.folder / "runs", "8m"):
        pytest.skip("only root may mount")
    remount = ["mount", "-o", "remount", str(runs.folder / "runs")]
    try:
        assert runs.run("limit=5") == 0
        passes = runs.passes()
        subprocess.run([*remount[:2], "remount,ro", remount[-1]], check=True)
        assert runs.run() == 2 and runs.passes() == passes
        assert "(Read-only file system): choose a writable folder" in runs.errors
        assert cli.main(["status", str(runs.folder / "runs")]) == 0, "a reader writes nothing"
        subprocess.run([*remount[:2], "remount,rw", remount[-1]], check=True)
        assert runs.run() == 0 and runs.passes() == SAMPLES
        assert runs.results() == calm
    finally:
        subprocess.run(["umount", str(runs.folder / "runs")], check=True)


def test_the_data_set_vanishes_midway(runs, calm):
    data = runs.folder / "data"
    data.write_text("pictures")
    pid = runs.start(FAKE_SLEEP="0.05", FAKE_DATA=str(data))
    while runs.answers() < 3 * CELLS:
        time.sleep(0.002)
    data.unlink()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert "the data of benchmark fake_qa vanished at sample" in runs.errors
    assert b'"error"' not in runs.journal.read_bytes(), "no sample is blamed for it"
    data.write_text("pictures")
    assert runs.run(FAKE_DATA=str(data)) == 0
    assert runs.results() == calm and runs.passes() <= SAMPLES + 1


def test_memory_runs_out_once(runs, calm):
    def short():
        from kvbench.running import run

        usual, failed = run.generate, []

        def generate(*arguments, **options):
            if not failed:
                failed.append(True)
                raise MemoryError("no 9 GB left")
            return usual(*arguments, **options)

        run.generate = generate

    assert runs.run(before=short) == 0
    assert "fewer branches at once did not help: use a larger device" in runs.errors
    assert runs.results() == calm


def test_a_clock_that_jumps(runs, calm):
    def jumping():
        dice = random.Random(6)
        time.time = lambda: dice.random() * 4e9

    assert runs.run(before=jumping) == 0
    assert runs.results() == calm
    records = [json.loads(line) for line in runs.journal.read_text().splitlines()]
    assert all(0 <= record["seconds"] < 60 for record in records if "text" in record)


def test_another_version_of_the_model_is_refused_before_it_runs(runs):
    assert runs.run() == 0
    passes = runs.passes()
    assert runs.run("model.dtype=bfloat16") == 2
    assert "2 versions of model fake, which no table may mix" in runs.errors
    assert runs.passes() == passes


def test_clean_deletes_these_cells_and_no_others(runs, calm):
    assert runs.run() == 0
    only = ("method=snapkv", "budget=64")
    assert runs.run(*only, "--clean") == 2 and "would delete 24 answers" in runs.errors
    assert runs.results() == calm
    passes = runs.passes()
    assert runs.run(*only, "--clean", "--yes") == 0
    assert runs.passes() == passes + SAMPLES
    assert runs.results() == calm


def test_status_tells_what_is_done(runs, capsys, monkeypatch):
    from kvbench import cli

    assert runs.run("shards=2", "shard=1", FAKE_FAIL="1:9") == 1
    assert cli.main(["status", str(runs.folder / "runs")]) == 1
    shown = capsys.readouterr().out
    assert "50 answers, 70 missing, 10 failed" in shown
    assert "fake / fake_qa (5 cells)" in shown and "snapkv budget=64" in shown
    assert runs.run("shards=2") == 0
    assert cli.main(["status", str(runs.folder / "runs"), "--watch"]) == 0
    shown = capsys.readouterr().out
    assert shown == "120 answers, 0 missing, 0 failed\n", "plain lines where there is no terminal"
    assert cli.main(["status", f"store={runs.folder}/runs", "--cells"]) == 0
    shown = capsys.readouterr().out
    assert "shard 1 of 2" in shown and shown.count("adakv+bacon budget=128") == 2


def test_a_plan_estimates_from_earlier_answers(runs, capsys):
    where = [f"store={runs.folder}/runs", "method=snapkv", "budget=64", "limit=12"]
    assert fakes.kvbench("plan", *where) == 0
    assert "cannot estimate" in capsys.readouterr().out
    assert runs.run("method=snapkv", "budget=64", "limit=3", FAKE_SLEEP="0.02") == 0
    assert fakes.kvbench("plan", *where) == 0
    assert "on one worker" in capsys.readouterr().out


def test_slurm_is_not_here(runs, monkeypatch):
    assert runs.run("launcher=slurm", PATH="/nowhere") == 2
    assert "Slurm is not installed here" in runs.errors and "Traceback" not in runs.errors
    assert runs.run("launcher=slrum") == 2
    assert "unknown launcher 'slrum': did you mean slurm?" in runs.errors


@pytest.mark.parametrize("launcher", [["launcher=slurm", "launcher.cluster=debug"],
                                      ["launcher=joblib", "launcher.jobs=2"]])  # fmt: skip
def test_launchers_end_in_the_same_bytes(runs, calm, launcher, monkeypatch):
    # Workers of joblib are programs of their own, which find the fakes when they start.
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import fakes; fakes.install()"
    (runs.folder / "sitecustomize.py").write_text(start)
    here = Path(__file__).parent.parent  # else they may find another kvbench that is installed
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(runs.folder), str(here)]))
    assert runs.run(*launcher, "shards=2") == 0, runs.errors
    assert runs.results() == calm and runs.passes() == SAMPLES
    assert runs.run(*launcher, "shards=2") == 0
    assert runs.passes() == SAMPLES
