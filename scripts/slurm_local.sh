#!/usr/bin/env bash
# A real Slurm on this machine, without systemd, and a small grid through it as an array.
#
#   scripts/slurm_local.sh [KVBENCH]        the kvbench command to use (default .venv/bin/kvbench)
#
# Shown: the jobs of the array complete; one that gets the preemption signal goes back into the queue and
# finishes; the merged results equal those of a plain run byte for byte.  Needs root on Debian, for packages
# and daemons; everything else lies in a folder of its own, removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
kvbench=${1:-.venv/bin/kvbench}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

say() { echo "slurm_local: $*"; }

if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
    say "installing slurm-wlm and munge"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurm-wlm munge >/dev/null
fi

work=$(mktemp -d)
host=$(hostname -s)
export SLURM_CONF=$work/slurm.conf
started_munge=

cleanup() {
    scancel --quiet --user=root 2>/dev/null || true
    for daemon in slurmd slurmctld; do
        if [ -f "$work/$daemon.pid" ]; then kill "$(cat "$work/$daemon.pid")" 2>/dev/null || true; fi
    done
    if [ -n "$started_munge" ]; then kill "$(cat /run/munge/munged.pid)" 2>/dev/null || true; fi
    rm -rf "$work"
}
trap cleanup EXIT

# Munge wants its folders to be its own.
mkdir -p /run/munge /var/log/munge /var/lib/munge /etc/munge
chown -R munge: /run/munge /var/log/munge /var/lib/munge /etc/munge
chmod 755 /run/munge
chmod 700 /etc/munge /var/log/munge /var/lib/munge
if ! munge -n 2>/dev/null | unmunge >/dev/null 2>&1; then
    [ -f /etc/munge/munge.key ] || runuser -u munge -- mungekey --create
    runuser -u munge -- munged
    started_munge=yes
fi
munge -n | unmunge >/dev/null

mkdir "$work/state" "$work/spool"
cat > "$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
MpiDefault=none
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=$host Default=YES State=UP
CONF
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
for _ in $(seq 60); do
    [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ] && break
    sleep 1
done
say "$(sinfo --noheader --format='partition %P: %D node, %T')"

grid=(-m model=embedded benchmark=docqa_mini method=fullkv,snapkv budget=64 limit="${LIMIT:-4}")
say "plain run"
"$kvbench" run "${grid[@]}" store="$work/plain"

say "the same as an array of two shards"
"$kvbench" run "${grid[@]}" store="$work/array" shards=2 launcher=slurm \
    launcher.partition=main launcher.gpus=null launcher.cpus=1 launcher.minutes=30 launcher.parallel=1 &
run=$!
journal=$work/array/embedded/docqa_mini/journal-0of2.jsonl
for _ in $(seq 600); do
    grep -qs '"run":' "$journal" && break
    sleep 0.2
done
grep -q '"run":' "$journal"
task=$(squeue --noheader --states=RUNNING --format=%i | head -1)
say "$task has begun: preemption signal"
scancel --signal=USR2 "$task"
restarts=0
while kill -0 "$run" 2>/dev/null; do
    seen=$(scontrol show job "${task%_*}" 2>/dev/null | grep -o 'Restarts=[0-9]*' | cut -d= -f2 | sort -n | tail -1)
    [ "${seen:-0}" -gt "$restarts" ] && restarts=$seen && say "requeued: Restarts=$seen"
    # A requeued job waits about two minutes before it is eligible again; there is nothing to wait for here.
    scontrol update "JobId=$task" StartTime=now 2>/dev/null || true
    sleep 1
done
code=0
wait "$run" || code=$?
say "exit code $code"
[ "$code" = 0 ] && [ "$restarts" -ge 1 ]
sessions=$(grep -c '"run":' "$journal")
say "shard 0 was written in $sessions sessions"
[ "$sessions" -ge 2 ]
for part in cells results; do
    diff -r "$work/plain/embedded/docqa_mini/$part" "$work/array/embedded/docqa_mini/$part"
done
say "$(ls "$work/array/embedded/docqa_mini/results" | wc -l) results equal those of the plain run byte for byte"
