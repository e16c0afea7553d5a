"""Expected trouble, as a value. Raised where it is known, rendered in one place (`cli.app`).

Must not import anything of ours: every layer raises this.
"""

from __future__ import annotations

from trainctl.exitcodes import ExitCode


class TrainctlError(Exception):
    """Something an operator can act on.

    ref: kebab-case identifier, also the anchor in docs/errors.md.
    message: what was found and what was expected, one line, lower case, no full stop.
    context: further lines that help (file, line, values).
    hint: what to do next.
    exit_code: how the process ends when nobody handles it.
    """

    def __init__(
        self,
        ref: str,
        message: str,
        *,
        context: tuple[str, ...] = (),
        hint: str = "",
        exit_code: ExitCode = ExitCode.USAGE,
    ) -> None:
        super().__init__(message)
        self.ref = ref
        self.message = message
        self.context = context
        self.hint = hint
        self.exit_code = exit_code
