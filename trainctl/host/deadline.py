"""Reading a source that may never answer: a child process each, abandoned at the deadline.

A driver call on a sick GPU, or a write to a dead NFS server, blocks in the kernel, where neither
a thread nor a signal can end it. A forked child can simply be left behind: nothing waits for it.
Fork, not spawn, because a fresh interpreter per source costs more than all the readings together.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

from trainctl.host.facts import Fact
from trainctl.host.processes import die_with_parent

Reader = Callable[[], Fact]
_REAP_S = 0.5


def read_all(readers: Mapping[str, Reader], deadline_s: float) -> dict[str, dict[str, object]]:
    """Run all readers side by side. Name -> {"value" or "error", "seconds"}, as `Reading` parses it.

    Never raises for a reader that raises, dies or hangs: that is its "error". Returns at the
    latest shortly after `deadline_s`. Fork from the main thread, before other threads exist.
    """
    started, parent = time.monotonic(), os.getpid()
    selector = selectors.DefaultSelector()
    pids: dict[str, int] = {}
    answers: dict[str, bytes] = dict.fromkeys(readers, b"")
    readings: dict[str, dict[str, object]] = {}
    try:
        for name, reader in readers.items():
            read_end, write_end = os.pipe()
            pid = os.fork()
            if pid == 0:
                _answer(reader, write_end, parent)
            os.close(write_end)
            pids[name] = pid
            selector.register(read_end, selectors.EVENT_READ, name)
        while selector.get_map():
            left_s = started + deadline_s - time.monotonic()
            if left_s <= 0:
                break
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, 1 << 16)
                answers[key.data] += chunk
                if not chunk:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    readings[key.data] = _parse(answers[key.data])
    finally:
        for key in list((selector.get_map() or {}).values()):
            os.close(key.fd)
        selector.close()
        _end(pids, finished=set(readings))
    late = {"error": f"no answer in {deadline_s:g} s", "seconds": deadline_s}
    return {name: readings.get(name, late) for name in readers}


def _answer(reader: Reader, descriptor: int, parent: int) -> NoReturn:
    """In the child: read, write one JSON object, leave without running anybody's clean-up."""
    code = 1
    try:
        if not die_with_parent(signal.SIGKILL, parent):
            os._exit(code)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        started = time.monotonic()
        try:
            answer: dict[str, object] = {"value": reader().model_dump(mode="json"), "error": ""}
        except Exception as error:
            answer = {"error": _in_words(error)}
        answer["seconds"] = round(time.monotonic() - started, 4)
        raw = json.dumps(answer).encode()
        while raw:
            raw = raw[os.write(descriptor, raw) :]
        code = 0
    finally:
        os._exit(code)


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _parse(raw: bytes) -> dict[str, object]:
    try:
        answer = json.loads(raw)
    except ValueError:
        return {"error": "the reader died before it answered"}
    return dict(answer)


def _end(pids: Mapping[str, int], finished: set[str]) -> None:
    """Collect the children. One that ignores KILL sits in the kernel and is left to init."""
    for name, pid in pids.items():
        if name not in finished:
            os.kill(pid, signal.SIGKILL)  # our own unreaped child: the pid cannot have been recycled
    waiting = set(pids.values())
    give_up = time.monotonic() + _REAP_S
    while waiting and time.monotonic() < give_up:
        for pid in list(waiting):
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    waiting.discard(pid)
            except ChildProcessError:
                waiting.discard(pid)
        if waiting:
            time.sleep(0.002)
