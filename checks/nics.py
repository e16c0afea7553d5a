"""Item 3: the interfaces that NCCL and gloo are told to use are there, by the rules they apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checks.base import Check, Code, Finding, Status, each_node
from trainctl.host.facts import HcaPort, Interface, NicFacts, NodeFacts
from trainctl.job.plan import Plan

_MOST_ENTRIES = 16  # NCCL reads no more

GOOD = Code("TC300", Status.PASS, "the interfaces that are named are there and up")
SYNTAX = Code(
    "TC301", Status.FAIL, "an interface list is not written as NCCL reads it",
    "one ^ (exclude) and then one = (exact) at the very start, commas without blanks, 16 entries at most",
)  # fmt: skip
NO_INTERFACE = Code(
    "TC302", Status.FAIL, "NCCL_SOCKET_IFNAME leaves no interface that is up and has an address",
    "name one of the interfaces that the finding lists, or unset it",
)  # fmt: skip
NO_HCA = Code(
    "TC303", Status.FAIL, "NCCL_IB_HCA leaves no active port, NCCL would use TCP sockets without a word",
    "name one of the devices that the finding lists, or unset it; NCCL_NET=IB makes NCCL refuse instead",
)  # fmt: skip
TOO_MANY = Code(
    "TC304", Status.WARN, "a prefix in an interface list also takes names that were not meant",
    "put one = at the start of the list for exact names",
)  # fmt: skip
MIXED = Code(
    "TC305", Status.WARN, "InfiniBand and Ethernet ports are used together", "name the devices of one kind"
)
UNEQUAL = Code(
    "TC306", Status.WARN, "a port is slower than its siblings", "check the cable and the switch port"
)
EXACT_NAMES = Code(
    "TC307", Status.FAIL, "GLOO_SOCKET_IFNAME or TP_SOCKET_IFNAME does not name usable interfaces exactly",
    "gloo knows neither prefixes nor ^ and =: write full names, or unset it",
)  # fmt: skip
SOCKETS = Code(
    "TC308", Status.WARN, "NCCL is told to use TCP sockets although an InfiniBand or RoCE port is active",
    "unset NCCL_NET and NCCL_IB_DISABLE",
)  # fmt: skip
NOT_SET = Code(
    "TC309", Status.WARN, "several nodes, and no interface is named",
    "set NCCL_SOCKET_IFNAME and NCCL_IB_HCA under [env], so that every node takes the intended network",
)  # fmt: skip
UNREADABLE = Code(
    "TC310", Status.UNKNOWN, "the interfaces of this machine could not be read", "see the reason"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceList:
    """A list as NCCL parses it. `problems`: what it does not mean, in words."""

    exclude: bool
    exact: bool
    entries: tuple[str, ...]
    problems: tuple[str, ...]

    def matched_by(self, entry: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if (name == entry if self.exact else name.startswith(entry))]

    def select(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that the list leaves, in their order."""
        hit = {name for entry in self.entries for name in self.matched_by(entry, names)}
        return [name for name in names if (name in hit) != self.exclude]


def parse_list(value: str) -> InterfaceList:
    """NCCL_SOCKET_IFNAME or NCCL_IB_HCA. A port after a colon (mlx5_0:1) is dropped here."""
    rest = value
    exclude = rest.startswith("^")
    rest = rest[1:] if exclude else rest
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    entries = rest.split(",")
    problems = []
    if any(entry != entry.strip() for entry in entries):
        problems.append("blanks are not trimmed, so an entry with one matches nothing")
    if any(entry.lstrip().startswith(("^", "=")) for entry in entries):
        problems.append("^ and = count at the very start only, in this order, for the whole list")
    if any(not entry for entry in entries):
        problems.append("an entry is empty")
    if len(entries) > _MOST_ENTRIES:
        problems.append(f"{len(entries)} entries, NCCL reads {_MOST_ENTRIES}")
    names = tuple(entry.partition(":")[0] for entry in entries if entry)
    return InterfaceList(exclude=exclude, exact=exact, entries=names, problems=tuple(problems))


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    environment, nics = node.environment.value, node.nics.value
    if environment is None or nics is None:
        reason = node.environment.error if environment is None else node.nics.error
        return [UNREADABLE(f"interfaces not judged: {reason}")]
    cpu = plan.device != "cuda"  # then ranks talk through gloo, and NCCL's variables are not read
    found: list[Finding] = []
    named: list[str] = []
    if socket_list := environment.get("NCCL_SOCKET_IFNAME"):
        named.append(f"NCCL_SOCKET_IFNAME={socket_list}")
        found += _judge_sockets(socket_list, nics, cpu)
    hca_list = environment.get("NCCL_IB_HCA")
    if hca_list:
        named.append(f"NCCL_IB_HCA={hca_list}")
        found += _judge_hcas(hca_list, nics, cpu)
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        if value := environment.get(name):
            named.append(f"{name}={value}")
            found += _judge_exact(name, value, nics.interfaces)
    active = [port for port in nics.ports if port.state == "ACTIVE"]
    net, disabled = environment.get("NCCL_NET") or "", environment.get("NCCL_IB_DISABLE") or "0"
    if active and not cpu and (net.lower() == "socket" or disabled == "1"):
        asked = f"NCCL_NET={net}" if net.lower() == "socket" else "NCCL_IB_DISABLE=1"
        found.append(SOCKETS(f"{asked} while {_ports(active)} is active"))
    if plan.layout.nodes > 1 and not named:
        found.append(NOT_SET(f"{plan.layout.nodes} nodes, neither NCCL_SOCKET_IFNAME nor NCCL_IB_HCA is set"))
    return found or [GOOD(_summary(plan, nics, named, active), evidence=_evidence(nics))]


def _judge_sockets(value: str, nics: NicFacts, harmless: bool) -> list[Finding]:
    shown = f"NCCL_SOCKET_IFNAME={value}"
    names = parse_list(value)
    if names.problems or len(value) < 2:
        return [
            SYNTAX(
                f"{shown}: {'; '.join(names.problems) or 'NCCL ignores a single character'}",
                harmless=harmless,
            )
        ]
    usable = [interface.name for interface in nics.interfaces if interface.running and interface.addresses]
    if not names.select(usable):
        return [
            NO_INTERFACE(f"{shown} leaves none of {', '.join(usable) or 'no interface'}", harmless=harmless)
        ]
    return _over_match(shown, names, [interface.name for interface in nics.interfaces])


def _judge_hcas(value: str, nics: NicFacts, harmless: bool) -> list[Finding]:
    shown = f"NCCL_IB_HCA={value}"
    names = parse_list(value)
    if names.problems:
        return [SYNTAX(f"{shown}: {'; '.join(names.problems)}", harmless=harmless)]
    devices = list(dict.fromkeys(port.device for port in nics.ports))
    selected = set(names.select(devices))
    ports = [port for port in nics.ports if port.device in selected and port.state == "ACTIVE"]
    if not ports:
        states = (
            ", ".join(f"{port.device} {port.state.lower()}" for port in nics.ports)
            or "no device on this machine"
        )
        return [NO_HCA(f"{shown} leaves no active port ({states})", harmless=harmless)]
    found = _over_match(shown, names, devices)
    if len({port.link_layer for port in ports}) > 1:
        found.append(
            MIXED(f"{shown} takes {', '.join(f'{port.device} {port.link_layer}' for port in ports)}")
        )
    rates = [port.rate_gbps for port in ports if port.rate_gbps is not None]
    slow = [port for port in ports if port.rate_gbps is not None and port.rate_gbps < max(rates)]
    if slow:
        words = ", ".join(f"{port.device} {port.rate_gbps:g} Gb/s" for port in slow)
        found.append(UNEQUAL(f"{words}, its siblings {max(rates):g} Gb/s"))
    return found


def _over_match(shown: str, names: InterfaceList, present: Sequence[str]) -> list[Finding]:
    """An entry that is the full name of one device and a prefix of others takes them all."""
    surplus = []
    for entry in names.entries:
        matched = names.matched_by(entry, present)
        if entry in matched:
            surplus += [name for name in matched if name != entry and name not in names.entries]
    return [TOO_MANY(f"{shown} also takes {', '.join(surplus)}")] if surplus else []


def _judge_exact(variable: str, value: str, interfaces: Sequence[Interface]) -> list[Finding]:
    usable = [interface.name for interface in interfaces if interface.addresses]
    wrong = [entry for entry in value.split(",") if entry not in usable]
    if not wrong:
        return []
    return [EXACT_NAMES(f"{variable}={value}: {', '.join(wrong)} is none of {', '.join(usable)}")]


def _ports(ports: Sequence[HcaPort]) -> str:
    return ", ".join(dict.fromkeys(port.device for port in ports))


def _summary(plan: Plan, nics: NicFacts, named: Sequence[str], active: Sequence[HcaPort]) -> str:
    if named:
        return f"{', '.join(named)}: there and up"
    up = [interface.name for interface in nics.interfaces if interface.running and interface.name != "lo"]
    network = f"{_ports(active)} active" if active else f"{', '.join(up) or 'loopback only'} up"
    return f"one node, no interface is named and none has to be ({network})"


def _evidence(nics: NicFacts) -> list[str]:
    lines = [
        f"{port.device}:{port.port} {port.state.lower()} {port.rate_gbps} Gb/s {port.link_layer}"
        for port in nics.ports
    ]
    for interface in nics.interfaces:
        state = "up" if interface.running else "down"
        speed = f" {interface.speed_mbps:,} Mb/s" if interface.speed_mbps else ""
        lines.append(f"{interface.name} {state}{speed} {' '.join(interface.addresses)}".rstrip())
    return lines


CHECK = Check(
    item=3,
    name="nics",
    title="the network interfaces that NCCL and gloo are told to use exist, are up and alike",
    codes=(
        GOOD, SYNTAX, NO_INTERFACE, NO_HCA, TOO_MANY, MIXED, UNEQUAL, EXACT_NAMES, SOCKETS, NOT_SET,
        UNREADABLE,
    ),
    judge=each_node(_judge),
)  # fmt: skip
