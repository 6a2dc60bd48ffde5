"""Names of the machine and of the one who asks."""

from __future__ import annotations

import re

from draftlab.host.fact import Absent, Fact, Known
from draftlab.host.facts import System
from draftlab.host.script import Section


def system_of(section: Section) -> Fact[System]:
    """Kernel, distribution, user, home, PATH."""
    words = (section.text("uname") or "").split()
    if len(words) != 4:
        raise ValueError(f"uname said {len(words)} words for four")
    release = section.text("os-release")
    pretty = re.search(r'^PRETTY_NAME="?(.*?)"?$', release or "", re.MULTILINE)
    return Known(
        value=System(
            kernel=words[0],
            hostname=words[1],
            kernel_release=words[2],
            machine=words[3],
            distribution=Known(value=pretty[1]) if pretty else Absent(why="no /etc/os-release"),
            user=section.text("user") or "",
            home=section.text("home") or "",
            path=tuple((section.text("path") or "").split(":")),
        )
    )
