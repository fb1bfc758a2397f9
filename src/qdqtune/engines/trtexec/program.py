"""One trtexec, and what was learned about it from calling it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path

from qdqtune.engines.trtexec.flags import DISPENSABLE, name_of
from qdqtune.engines.trtexec.output import has_passed, reason_of, unknown_options
from qdqtune.engines.trtexec.running import Finished, run_command
from qdqtune.engines.trtexec.version import Version


class TrtexecError(RuntimeError):
    """A call of trtexec failed; the message says why.

    Args:
        reason: Why.
        text: What it printed.
    """

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(reason)
        self.text = text


class Program:
    """A trtexec.

    Args:
        path: Where it is.
        version: The version of its TensorRT.

    Attributes:
        refused: Options that it turned out not to know; they are not said to it again.
        loads: Whether it loads engines that it built; None as long as it wasn't tried.
        trusts_cache: Whether a failed build fails without the timing cache, too; None as long as
            it wasn't tried. If it doesn't, the file is not used again.
    """

    def __init__(self, path: str, version: Version) -> None:
        self.path = path
        self.version = version
        self.refused: set[str] = set()
        self.loads: bool | None = None
        self.trusts_cache: bool | None = None

    def call(
        self, arguments: Sequence[str], given: Sequence[str] = (), log: Path | None = None
    ) -> str:
        """Calls it; options that it can do without are left out if it doesn't know them.

        Args:
            arguments: All of them.
            given: Those that the user said: they are never left out.
            log: File that gets the command and what is printed.

        Returns:
            What it printed.

        Raises:
            TrtexecError: If it failed.
            OSError: If it can't be started.
        """
        ours = DISPENSABLE - {name_of(argument) for argument in given}
        finished = self._run(arguments, self.refused & ours, log)
        if self._refuses(finished, ours):
            finished = self._run(arguments, self.refused & ours, log)
            if self._refuses(finished, ours):  # it names one at a time
                finished = self._run(arguments, ours, log)
        if finished.code != 0 or not has_passed(finished.text):
            raise TrtexecError(reason_of(finished.text, finished.code), finished.text)
        return finished.text

    def _refuses(self, finished: Finished, ours: Set[str]) -> bool:
        """Whether all that it doesn't know is ours, and can be left out; remembers it."""
        unknown = unknown_options(finished.text)
        if not unknown or not unknown <= ours:
            return False
        self.refused |= unknown
        return True

    def _run(self, arguments: Sequence[str], left_out: Set[str], log: Path | None) -> Finished:
        kept = [argument for argument in arguments if name_of(argument) not in left_out]
        return run_command([self.path, *kept], log)
