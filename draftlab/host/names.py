"""Host names as ssh may be given them."""

from __future__ import annotations

import re

from draftlab.base.errors import DraftlabError
from draftlab.base.quantities import one_line

_NAME = re.compile(r"(ssh://)?([\w.+-]+@)?[\w.:%\[\]-]+(:\d+)?/?")


def require_host(name: str) -> str:
    """A name that is neither an option of ssh nor anything that a shell would read.

    Names reach a shell where the user's configuration has a `ProxyCommand` with `%h` in it, so only
    letters, digits and `.`, `_`, `-`, `:`, `%`, `[`, `]` pass (aliases of ssh_config, addresses),
    after an optional `user@` or `ssh://user@`.

    Raises:
        DraftlabError: another character, or a name that starts with `-`.
    """
    bare = name.removeprefix("ssh://").rpartition("@")[2]
    if name.startswith("-") or bare.startswith("-") or not _NAME.fullmatch(name):
        raise DraftlabError(
            f"{one_line(repr(name), at_most=80)} is not a host name.",
            mend="Name a host as in `ssh HOST`: an alias of your ssh configuration, user@host, or "
            "an address; for anything else, give it an alias there.",
        )
    return name
