#!/bin/bash
# Is a killed and repeated run the same as an undisturbed one, byte for byte, on the real embedded model?
#
#     scripts/check_kill.sh          # about two minutes on two CPU cores; needs `kvbench` on the PATH
#
# Both runs use the same relative store, each in a folder of its own. The second is killed with SIGKILL once
# its journal holds answers, then the same command is given again. Exits with 1 when a result differs.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { exec kvbench run -m model=embedded benchmark=docqa_mini method=fullkv,snapkv,snapkv+bacon budget=128,32 limit=8 store=store; }

mkdir "$work/calm" "$work/killed"
(cd "$work/calm"; run)

cd "$work/killed"
(run) & runner=$!
journal=store/embedded/docqa_mini/journal.jsonl
until [ "$(wc -l < $journal 2>/dev/null || echo 0)" -ge 12 ]; do sleep 0.1; done
kill -9 $runner
wait $runner 2>/dev/null || true
echo "killed with $(wc -l < $journal) records in the journal"
(run)

diff -r "$work/calm/store/embedded/docqa_mini/results" store/embedded/docqa_mini/results
echo "$(ls store/embedded/docqa_mini/results | wc -l) results are equal byte for byte"
