"""What a container engine writes into the kernel's firewall, taken back: the engine itself leaves it there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# Its chains, and the bridges of its networks.
ENGINES = re.compile(r"\bDOCKER\b|\bDOCKER-|\bbr-[0-9a-f]{12}\b")
TABLES = ("filter", "nat")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
POLICY = "-P FORWARD "


def rules(table: str) -> list[str]:
    """Rules, chains and policies of a table as arguments of iptables."""
    listed = subprocess.run(["iptables", "-w", "-t", table, "-S"], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def is_owned() -> bool:
    """True when some engine's chains are there already."""
    return any(rule.startswith("-N DOCKER") for table in TABLES for rule in rules(table))


def removals(listed: list[str]) -> list[str]:
    """What takes an engine's rules and chains away, in this order."""
    mine = [rule for rule in listed if ENGINES.search(rule)]
    jumps = [f"-D {rule.removeprefix('-A ')}" for rule in mine if rule.startswith("-A ")]
    chains = [rule.removeprefix("-N ") for rule in mine if rule.startswith("-N ")]
    return [*jumps, *(f"-F {chain}" for chain in chains), *(f"-X {chain}" for chain in chains)]


class Firewall:
    """The state before an engine starts. `restore` only touches what engines write, so others may change theirs."""

    def __init__(self) -> None:
        self._policy = next(rule for rule in rules("filter") if rule.startswith(POLICY))
        self._forwarding = FORWARDING.read_text()

    def restore(self) -> None:
        """Remove the chains of the engine and everything that leads to them."""
        for table in TABLES:
            for words in removals(rules(table)):
                subprocess.run(["iptables", "-w", "-t", table, *words.split()], check=True)
        subprocess.run(["iptables", "-w", *self._policy.split()], check=True)
        FORWARDING.write_text(self._forwarding)
