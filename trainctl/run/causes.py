"""The closed list of causes: for each, whether a restart can help, and what an operator should do.

A table and nothing else. Adding a cause: one row here, one rule in `classify`, one test.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Restart(Enum):
    """What a restart can do about it."""

    HELPS = "helps"  # bounded by the budget and by the same-failure rule
    POINTLESS = "pointless"  # the same thing would happen again
    PLANNED = "planned"  # nothing failed: the run was asked to end here


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """name: dotted, group first. startup: reported apart from failures of a running job."""

    name: str
    says: str
    restart: Restart
    advice: str = ""


def _table(*causes: Cause) -> dict[str, Cause]:
    return {cause.name: cause for cause in causes}


_H, _P, _X = Restart.HELPS, Restart.POINTLESS, Restart.PLANNED

CAUSES = _table(
    # the end that was asked for
    Cause(name="stop.interrupt", says="stopped by Ctrl-C", restart=_X),
    Cause(name="stop.terminate", says="stopped by SIGTERM to trainctl", restart=_X),
    Cause(name="stop.trainer", says="the trainer saved and stopped on request", restart=_X),
    # the machine or somebody on it
    Cause(name="process.killed", says="a rank was killed", restart=_H,
          advice="somebody ran kill -9, or the kernel was out of memory: see `dmesg -T | grep -i oom`"),
    Cause(name="process.terminated", says="a rank was ended from outside", restart=_H,
          advice="a scheduler or a person sent it; trainctl did not"),
    Cause(name="process.crashed", says="a rank crashed in native code", restart=_H,
          advice="the Python stack at the crash is at the end of the rank's .err file"),
    Cause(name="launcher.torchrun", says="torchrun was ended", restart=_H,
          advice="logs/agent.log of the attempt has its last words"),
    Cause(name="launcher.supervisor", says="trainctl itself was ended", restart=_H,
          advice="out of memory, a person, or the node: see `dmesg -T` and the scheduler's log"),
    # no progress
    Cause(name="deadlock", says="no rank made progress", restart=_H,
          advice="watchdog.stall_s is the limit; the last heartbeats show who was where"),
    Cause(name="startup.timeout", says="no first step in time", restart=_H,
          advice="watchdog.startup_s is the limit; raise it when start-up really takes longer"),
    Cause(name="startup.failed", says="the trainer ended before its first step", restart=_P,
          advice="fix what the log says; starting it again would end the same way"),
    Cause(name="startup.torchrun", says="torchrun did not start the ranks", restart=_H,
          advice="logs/agent.log of the attempt says why"),
    # the program
    Cause(name="user.code", says="the program cannot run as it is", restart=_P,
          advice="fix the line the log names; a restart would meet it again"),
    Cause(name="user.config", says="the trainer refused its configuration", restart=_P,
          advice="fix the configuration; `trainctl plan` shows every value with its source"),
    Cause(name="exception", says="a rank raised an exception", restart=_H),
    Cause(name="exit", says="a rank ended with an exit code of its own", restart=_H),
    Cause(name="ended.early", says="every rank ended well but the planned last step was not reached",
          restart=_P, advice="the trainer decided to end: see the log of rank 0"),
    Cause(name="collective", says="a collective failed and no rank is known to have failed first",
          restart=_H, advice="a link, a peer gone unseen, or a timeout: see every rank's .err file"),
    # resources
    Cause(name="oom.device", says="out of device memory", restart=_P,
          advice="lower train.micro_batch or the model; `trainctl preflight --only 1,4` shows who holds it"),
    Cause(name="oom.host", says="out of host memory", restart=_P,
          advice="lower train.micro_batch or the number of ranks on this host"),
    Cause(name="storage.full", says="no space left to write", restart=_P,
          advice="free space or inodes there, or lower checkpoint.keep; nothing durable was lost"),
    Cause(name="storage.readonly", says="the file system became read-only", restart=_P,
          advice="remount it or move job.runs_dir; nothing durable was lost"),
    Cause(name="storage.error", says="reading or writing a file failed", restart=_H,
          advice="see the path in the log and the health of its file system"),
    # numbers
    Cause(name="numerics.rejected", says="a step was rejected: NaN or Inf", restart=_H,
          advice="parameters are those of the step before; the step record has the sample ids"),
    Cause(name="numerics.disambiguate", says="a step is to be repeated on another device", restart=_H),
    Cause(name="unknown", says="ended without leaving a reason", restart=_H,
          advice="see logs/ of the attempt"),
)  # fmt: skip


def document() -> str:
    """The table as a page for people; `python -m trainctl.run.causes > docs/causes.md` writes it."""
    lines = [
        "# Causes",
        "",
        "Every end of an attempt gets one of these names, or none when the planned last step was reached.",
        "",
    ]
    meaning = {
        Restart.HELPS: "Restarted within the budget, until it repeats without a newer checkpoint.",
        Restart.POINTLESS: "Not restarted: the same thing would happen again.",
        Restart.PLANNED: "Not a failure.",
    }
    for cause in CAUSES.values():
        lines += [
            f"## {cause.name}",
            "",
            f"{cause.says[0].upper()}{cause.says[1:]}. {meaning[cause.restart]}",
        ]
        lines += ["", f"{cause.advice[0].upper()}{cause.advice[1:]}."] if cause.advice else []
        lines += [""]
    return "\n".join(lines[:-1])


if __name__ == "__main__":
    print(document())
