"""Around every rank: its logs, its true exit status, and the end of everything it started.

torchrun starts this file by path (`python -I -S rank.py ATTEMPT_DIR WORKING_DIR COMMAND...`) once per rank.
It stays beside the rank as its parent, because only a parent learns how a process really ended:
torchrun reports a segfault, an exit code 75 and an exception alike as failure 1.

Standard library only and nothing of ours: it must start in milliseconds and must not be
shadowed by modules of the job. It has no opinion: it records.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time

RECORD_BYTES = 1024  # from the first write on, so that a full disk cannot hide how a rank ended
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFTOVER_DEADLINE_S = 5.0
# Group signals reach the rank as well; the wrapper must outlive it to record its end.
OUTLIVED = {
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
}  # fmt: skip
libc = ctypes.CDLL(None, use_errno=True)


class ExitRecord:
    """`exits/rank-N.json`, rewritten in place: running first, then how it ended."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.fields: dict[str, object] = {
            "rank": int(os.environ["RANK"]),
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "wrapper_pid": os.getpid(),
        }

    def write(self, **fields: object) -> None:
        self.fields.update(fields)
        raw = json.dumps(self.fields).encode()
        os.pwrite(self.descriptor, raw.ljust(RECORD_BYTES - 1) + b"\n", 0)


def start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def start(command: list[str], out_path: str, err_path: str) -> int:
    """Fork and exec the rank with its own logs; it dies with this wrapper. Returns its pid."""
    out = os.open(out_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    err = os.open(err_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    wrapper = os.getpid()
    # a signal between fork and the handlers below would end the wrapper alone
    signal.pthread_sigmask(signal.SIG_BLOCK, OUTLIVED)
    pid = os.fork()
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != wrapper:
            os._exit(1)
        os.dup2(out, 1)
        os.dup2(err, 2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OUTLIVED)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"trainctl: cannot start {command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    for number in OUTLIVED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OUTLIVED)
    os.close(out)
    os.close(err)
    return pid


def end_leftovers() -> None:
    """Kill what the rank left behind (data-loader workers that setsid'ed away, helpers).

    They were adopted by this wrapper when the rank died, and may hold device memory.
    """
    deadline = time.monotonic() + LEFTOVER_DEADLINE_S
    try:
        while time.monotonic() < deadline:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                left = [int(pid) for pid in file.read().split()]
            if not left:
                return
            for pid in left:
                os.kill(pid, signal.SIGKILL)  # our own unreaped child: the pid cannot have been recycled
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.01)
    except OSError:
        return  # not ours to signal, or a kernel without that file: the supervisor looks again


def main() -> None:
    attempt_dir, working_dir, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(os.environ["TRAINCTL_AGENT_PID"]):
        sys.exit(1)  # the agent died before the death signal was armed
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.chdir(working_dir)
    rank = os.environ["RANK"]
    record = ExitRecord(f"{attempt_dir}/exits/rank-{rank}.json")
    pid = start(command, f"{attempt_dir}/logs/rank-{rank}.out", f"{attempt_dir}/logs/rank-{rank}.err")
    record.write(state="running", pid=pid, start_ticks=start_ticks(pid), started=time.time())
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    record.write(state="exited", ended=time.time(), exit_code=code)
    end_leftovers()
    if code < 0:  # end the same way, without a second core file
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
