"""The command before torchrun: `torch.distributed.launch` under our name. Deprecated there; scripts still call it.

Without `--use-env` every worker gets one more argument, `--local-rank=N`, right after the script's name.
"""

from __future__ import annotations

import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence

from holdfast.core.config.flags import USE_ENV
from holdfast.elastic.run import BadValue, as_program, get_args_parser, run


def parse_args(args: Sequence[str] | None) -> Namespace:
    """torchrun's flags, and `--use-env`."""
    parser = get_args_parser()
    parser.add_argument(*USE_ENV.names, default=False, action="store_true", help=USE_ENV.help)
    return parser.parse_args(args)


def launch(args: Namespace) -> None:
    """Run the job."""
    if args.no_python and not args.use_env:
        raise BadValue(
            "--no-python needs --use-env: a program that is not a script gets no --local-rank argument", hint="add --use-env"
        )
    run(args)


def main(args: Sequence[str] | None = None) -> None:
    """The command: parse and run."""
    warnings.warn("holdfast.elastic.launch is for old scripts: use `holdfast run` and LOCAL_RANK", FutureWarning, stacklevel=2)
    launch(parse_args(args))


if __name__ == "__main__":
    sys.exit(as_program(main))
