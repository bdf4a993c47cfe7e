"""One module a command, each with ``main(arguments) -> exit code``; kvbench/cli.py names them."""

DONE, INCOMPLETE, USER_ERROR, INTERRUPTED = 0, 1, 2, 130
REQUEUE = 75  # preempted: the same command continues (EX_TEMPFAIL of sysexits.h)
