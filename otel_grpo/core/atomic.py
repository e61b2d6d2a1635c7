"""Several small changes that an interrupt finds done or not done, never half done."""

from __future__ import annotations

import sys
from collections.abc import Callable

if sys.version_info >= (3, 11):
    from operator import call
else:
    from operator import methodcaller

    call = methodcaller("__call__")


def at_once(*changes: Callable[[], object]) -> None:
    """Call each of `changes`, which must be C functions with their arguments bound (`partial`).

    Ctrl-C is raised between two bytecodes of the main thread, wherever that may be. The loop here
    runs in C: no bytecode lies between the first change and the last.
    """
    list(map(call, changes))
