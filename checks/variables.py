"""What the libraries parse each variable as. Data for item 2, and nothing else.

Names and parsers are those of NCCL 2.30 (strtoll with base 0, case-sensitive path words) and torch 2.13
(y/yes/1/t/true against n/no/0/f/false in any case, anything else throws; integers through stoi).
"""

from __future__ import annotations

import re

# strtoll: "true" silently is 0, so NCCL_IB_DISABLE=true does not disable anything
NCCL_INTEGERS = frozenset(
    f"NCCL_{name}"
    for name in (
        "IB_DISABLE", "IB_TIMEOUT", "IB_RETRY_CNT", "IB_GID_INDEX", "IB_SL", "IB_TC", "IB_PKEY",
        "IB_AR_THRESHOLD", "IB_QPS_PER_CONNECTION", "IB_SPLIT_DATA_ON_QPS", "IB_PCI_RELAXED_ORDERING",
        "IB_ADAPTIVE_ROUTING", "IB_ROCE_VERSION_NUM", "IB_MERGE_VFS", "IB_MERGE_NICS", "P2P_DISABLE",
        "P2P_DIRECT_DISABLE", "SHM_DISABLE", "NVLS_ENABLE", "NVB_DISABLE", "PXN_DISABLE", "CUMEM_ENABLE",
        "CUMEM_HOST_ENABLE", "DMABUF_ENABLE", "MNNVL_ENABLE", "RAS_ENABLE", "NET_GDR_READ", "CROSS_NIC",
        "SOCKET_NTHREADS", "NSOCKS_PERTHREAD", "NTHREADS", "BUFFSIZE", "MIN_NCHANNELS", "MAX_NCHANNELS",
        "MIN_CTAS", "MAX_CTAS", "CGA_CLUSTER_SIZE", "P2P_NVL_CHUNKSIZE", "P2P_NET_CHUNKSIZE",
        "P2P_PCI_CHUNKSIZE", "COMM_BLOCKING", "LAUNCH_ORDER_IMPLICIT", "GRAPH_REGISTER", "LOCAL_REGISTER",
        "GRAPH_MIXING_SUPPORT", "IGNORE_CPU_AFFINITY", "SET_STACK_SIZE", "CHECK_POINTERS",
        "CHECKS_DISABLE", "NET_SHARED_BUFFERS", "NET_SHARED_COMMS", "RUNTIME_CONNECT", "OOB_NET_ENABLE",
        "IGNORE_DISABLED_P2P", "SET_THREAD_NAME",
    )
)  # fmt: skip
TORCH_BOOLEANS = frozenset(
    (
        "TORCH_FR_CPP_STACK", "TORCH_FR_DUMP_DYNAMIC_FILE_NAME", "TORCH_INCLUDE_STACK_TRACE",
        "TORCH_INCLUDE_ONLY_ACTIVE", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_CUDA_EVENT_CACHE",
        "TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_MONITORING",
        "TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "TORCH_NCCL_NAN_CHECK",
        "TORCH_NCCL_PROPAGATE_ERROR", "TORCH_NCCL_RETHROW_CUDA_ERRORS", "TORCH_NCCL_TRACE_CPP_STACK",
    )
)  # fmt: skip
TORCH_INTEGERS = frozenset(
    (
        "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_COORD_CHECK_MILSEC",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_RANKS_PER_ROOT", "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
    )
)  # fmt: skip
OTHER_INTEGERS = frozenset(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING")
)

_PATH_LEVEL = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
# name -> (words, whether case matters, what happens with another word)
WORDS: dict[str, tuple[tuple[str, ...], bool, str]] = {
    "NCCL_P2P_LEVEL": (_PATH_LEVEL, True, "NCCL ignores an unknown word in silence"),
    "NCCL_NET_GDR_LEVEL": (_PATH_LEVEL, True, "NCCL ignores an unknown word in silence"),
    "NCCL_DEBUG": (
        ("VERSION", "WARN", "INFO", "ABORT", "TRACE"),
        False,
        "NCCL logs nothing for an unknown word",
    ),
    "CUDA_DEVICE_ORDER": (
        ("FASTEST_FIRST", "PCI_BUS_ID"),
        True,
        "CUDA documents no other value",
    ),
    "TORCH_DISTRIBUTED_DEBUG": (("OFF", "INFO", "DETAIL"), False, "torch raises for an unknown word"),
}
LEGACY_LEVELS = ("0", "1", "2", "3", "4", "5")  # P2P_LEVEL and NET_GDR_LEVEL as numbers

# Old name -> the name that wins when both are set.
RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_CPP_STACK": "TORCH_FR_CPP_STACK",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "TORCH_FR_DUMP_TEMP_FILE",
}

# Exported by many launch scripts and read by nothing.
NO_EFFECT = {
    "NCCL_TIMEOUT": "neither NCCL nor torch reads it",
    "GLOO_TIMEOUT": "gloo does not read it",
}

# Would break every launch under torchrun.
FORBIDDEN = {
    "NCCL_COMM_ID": "it replaces the id that torch exchanges between ranks, so communicators do not form",
}

# Useful while hunting a bug, costly for weeks. A switch counts as set unless it is off.
DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel launch waits for the one before",
    "NCCL_P2P_DISABLE": "GPUs of one node talk through host memory",
    "NCCL_SHM_DISABLE": "processes of one node talk through the network",
    "NCCL_IB_DISABLE": "traffic between nodes uses TCP sockets",
    "NCCL_ALGO": "NCCL may not choose the algorithm",
    "NCCL_PROTO": "NCCL may not choose the protocol",
    "NCCL_LAUNCH_MODE": "NCCL may not choose how it launches",
    "CUDA_INJECTION64_PATH": "a profiler is loaded into every rank",
    "CUDA_INJECTION32_PATH": "a profiler is loaded into every rank",
    "NSIGHT_CUDA_DEBUGGER": "a debugger is attached to every rank",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "a GPU exception writes a core of the device memory",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "a GPU exception waits for a debugger instead of ending",
    "CUDA_PROFILE": "the legacy profiler is on",
    "COMPUTE_PROFILE": "the legacy profiler is on",
    "OPENCL_PROFILE": "the legacy profiler is on",
    "TORCH_SHOW_DISPATCH_TRACE": "torch prints every operation",
}
OFF_VALUES = ("", "0")
LOUD_DEBUG_RANKS = 64  # ranks above which NCCL_DEBUG=INFO floods the logs

_STRTOLL = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)\s*")
_STOI = re.compile(r"\s*[+-]?[0-9]+")
_ANYTHING_ELSE = "anything else aborts or hangs start-up without naming itself"
_TRUE = ("y", "yes", "1", "t", "true")
_FALSE = ("n", "no", "0", "f", "false")


def misread(name: str, value: str) -> str:
    """What the library makes of a value that it does not understand; "" when it is understood."""
    if name in NCCL_INTEGERS and not value:
        return ""  # NCCL takes an empty parameter for an unset one
    if name in NCCL_INTEGERS and not _STRTOLL.fullmatch(value):
        return f"NCCL parses it as the integer {_strtoll(value)}"
    if name in TORCH_BOOLEANS and value.lower() not in (*_TRUE, *_FALSE):
        return f"torch takes 1, 0, true, false, yes or no; {_ANYTHING_ELSE}"
    if name in TORCH_INTEGERS and not _STOI.match(value):
        return f"torch takes an integer; {_ANYTHING_ELSE}"
    if name in OTHER_INTEGERS and not all(part.strip().isdigit() for part in value.split(",")):
        return "an integer is expected"
    if name in WORDS:
        words, case_matters, consequence = WORDS[name]
        if words == _PATH_LEVEL and value in LEGACY_LEVELS:
            return ""
        if (value if case_matters else value.upper()) not in words:
            return f"{consequence}; it knows {' '.join(words)}"
    return ""


def switched_on(value: str) -> bool:
    """How torch reads a boolean that it understands."""
    return value.lower() in _TRUE


def as_integer(value: str | None) -> int | None:
    """How stoi reads it: the leading integer, None when there is none."""
    found = _STOI.match(value) if value is not None else None
    return int(found[0]) if found else None


def _strtoll(value: str) -> int:
    """The leading integer in base 0, as C parses it: 0 when there is none, "010" is 8."""
    found = _STRTOLL.match(value)
    if not found:
        return 0
    text = found[0].strip()
    digits = text.lstrip("+-")
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") and len(digits) > 1 else 10
    return int(digits, base) * (-1 if text.startswith("-") else 1)
