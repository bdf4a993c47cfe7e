#!/usr/bin/env bash
# A real Slurm on this machine, without systemd, and Table 1 on the embedded model through it as an array.
#
#   scripts/slurm_local.sh [KVBENCH]        the kvbench command to use (default .venv/bin/kvbench)
#   LIMIT=2                                 samples of each benchmark
#
# Shown: the jobs of the array complete; one that gets the preemption signal goes back into the queue and
# finishes; the merged results equal those of a plain run byte for byte.  Needs root on Debian, for packages
# and daemons; everything else lies in a folder of its own, removed at the end.  Where Slurm cannot be installed
# or started (no Debian, no root, no packages), a sentence says so and the exit code is 0, or 1 with
# SLURM_REQUIRED=1; once its daemons can be started, every failure is one.
set -euo pipefail
cd "$(dirname "$0")/.."
kvbench=${1:-.venv/bin/kvbench}
cores=$(env -u OMP_NUM_THREADS nproc)  # which would count threads otherwise
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
patience=${PATIENCE:-900}  # seconds that the array may take

say() { echo "slurm_local: $*"; }
skip() { say "not checked: $*"; [ -z "${SLURM_REQUIRED:-}" ]; exit; }

missing() { ! { command -v slurmctld && command -v slurmd && command -v munged && command -v sbatch; } >/dev/null; }
if missing; then
    [ -f /etc/debian_version ] || skip "Slurm is not installed, and this is not Debian, whose packages are used here."
    [ "$(id -u)" = 0 ] || skip "Slurm is not installed, and installing it needs root."
    say "installing slurm-wlm and munge"
    fetch=(timeout --kill-after=10 180 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=15
        -o DPkg::Lock::Timeout=60)
    { "${fetch[@]}" update && DEBIAN_FRONTEND=noninteractive "${fetch[@]}" install -y --no-install-recommends \
        slurm-wlm munge; } </dev/null 2>&1 >/dev/null | tail -n 5 || true  # what apt complained about
    if missing; then skip "Slurm is not installed, and its packages cannot be fetched here."; fi
fi
[ "$(id -u)" = 0 ] || skip "Slurm is installed, but only root may start its daemons."

work=$(mktemp -d)
host=$(hostname -s)
export SLURM_CONF=$work/slurm.conf
run=
started_munge=

# Every daemon is ended by the number that it wrote down, gently and then not.
end() {
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
}
cleanup() {
    code=$?
    trap - EXIT
    if [ "$code" != 0 ]; then
        say "FAILED (exit code $code)"
        tail -n 20 "$work"/*.log "$work"/array/slurm/*.err 2>/dev/null || true
    fi
    [ -z "$run" ] || kill "$run" 2>/dev/null || true
    if [ -f "$work/slurmctld.pid" ]; then
        timeout 10 scancel --quiet --user=root 2>/dev/null || true
        for _ in $(seq 30); do  # the steps of killed jobs end before the daemon that started them
            [ -n "$(timeout 10 squeue --noheader 2>/dev/null || true)" ] || break
            sleep 1
        done
    fi
    for daemon in slurmd slurmctld; do end "$work/$daemon.pid"; done
    [ -z "$started_munge" ] || end /run/munge/munged.pid
    rm -rf "$work" || true  # a step that ends late may still write
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

munged_answers() { timeout 10 munge -n 2>/dev/null | timeout 10 unmunge >/dev/null 2>&1; }
if ! munged_answers; then
    # Munge wants its folders to be its own.
    mkdir -p /run/munge /var/log/munge /var/lib/munge /etc/munge
    chown -R munge: /run/munge /var/log/munge /var/lib/munge /etc/munge
    chmod 755 /run/munge
    chmod 700 /etc/munge /var/log/munge /var/lib/munge
    [ -f /etc/munge/munge.key ] || timeout 30 runuser -u munge -- mungekey --create
    timeout 30 runuser -u munge -- munged --force
    started_munge=yes
    for _ in $(seq 20); do munged_answers && break; sleep 0.5; done
    munged_answers
fi

mkdir "$work/state" "$work/spool"
port=$((20000 + $$ % 20000))  # beside any Slurm that runs already
cat > "$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
KillWait=5
MpiDefault=none
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores State=UNKNOWN
PartitionName=main Nodes=$host Default=YES State=UP
CONF
timeout 60 slurmctld -f "$SLURM_CONF"
timeout 60 slurmd -f "$SLURM_CONF"
state() { timeout 10 sinfo --noheader --format=%T 2>/dev/null || true; }
for _ in $(seq 60); do
    [ "$(state)" = idle ] && break
    sleep 1
done
[ "$(state)" = idle ] || { say "the node is not idle but: $(state)"; exit 1; }
say "$(slurmctld -V), $(timeout 10 sinfo --noheader --format='partition %P: %D node, %T')"

grid=(experiment=table1 limit="${LIMIT:-2}")
say "Table 1 as a plain run: kvbench run ${grid[*]}"
timeout -k 30 "$patience" "$kvbench" run "${grid[@]}" store="$work/plain" &
run=$!  # in the background: a trap waits for what runs in the foreground
wait "$run"
run=

say "the same as an array, two shards of each benchmark"
timeout -k 30 "$patience" "$kvbench" run "${grid[@]}" store="$work/array" shards=2 launcher=slurm \
    launcher.partition=main launcher.gpus=null launcher.cpus=1 launcher.minutes=30 \
    launcher.parallel=1 &
run=$!

# The first job is preempted once it has begun to answer: submitit listens to USR2.  Until then it is alone.
task=
while [ -z "$task" ] && kill -0 "$run" 2>/dev/null; do
    sleep 0.2
    journal=$(grep -ls '"run":' "$work"/array/embedded/*/journal-*.jsonl | head -1 || true)
    [ -n "$journal" ] && task=$(timeout 10 squeue --noheader --states=RUNNING --format=%i | head -1 || true)
done
[ -n "$task" ] || { say "no job of the array began"; exit 1; }
say "$task is running: preemption signal"
timeout 10 scancel --signal=USR2 "$task" || true  # it asks again while the job is on its way back already
timeout 10 scontrol update "JobId=${task%_*}" "ArrayTaskThrottle=$cores"
restarts=0
while kill -0 "$run" 2>/dev/null; do
    seen=$(timeout 10 scontrol show job "${task%_*}" 2>/dev/null | grep -o 'Restarts=[0-9]*' | cut -d= -f2 \
        | sort -n | tail -1 || true)
    if [ "${seen:-0}" -gt "$restarts" ]; then
        restarts=$seen
        say "requeued: Restarts=$seen"
    fi
    # A requeued job waits about two minutes before it is eligible again; there is nothing to wait for here.
    timeout 10 scontrol update "JobId=$task" StartTime=now 2>/dev/null || true
    sleep 1
done
code=0
wait "$run" || code=$?
run=
say "exit code $code"
[ "$code" = 0 ] || { say "the array did not finish"; exit 1; }
[ "$restarts" -ge 1 ] || { say "no job was requeued"; exit 1; }
sessions=$(cat "$work"/array/embedded/*/journal-*.jsonl | grep -c '"run":')
jobs=$(ls "$work"/array/embedded/*/journal-*.jsonl | wc -l)
say "$jobs jobs wrote in $sessions sessions"
for part in cells results; do
    for folder in "$work"/plain/embedded/*/; do
        diff -r "$folder$part" "$work/array/embedded/$(basename "$folder")/$part"
    done
done
say "$(ls "$work"/array/embedded/*/results/*.json | wc -l) results equal those of the plain run byte for byte"
