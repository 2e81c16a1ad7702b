"""The command ``gpukit``, also ``python -m gpukit``."""

import argparse
import sys

import gpukit


def main(argv=None):
    """Run one command of ``gpukit``; returns its exit status."""
    text = "GPU programming with Numba, with a GPU or without one."
    parser = argparse.ArgumentParser(prog="gpukit", description=text)
    parser.add_argument("--version", action="version", version=f"gpukit {gpukit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    text = "say what this machine has, what is wrong with it, and the command that mends it"
    detail = "Exit status: 0 if work can start (on a GPU or on the emulator), 1 if not."
    doctor = commands.add_parser("doctor", help=text, description=f"{text.capitalize()}. {detail}")
    doctor.set_defaults(run=_doctor)

    text = "measure gpukit beside the libraries, on a GPU or what can be measured without one: gpukit bench --help"
    bench = commands.add_parser("bench", help=text, description=f"{text.capitalize()}.", add_help=False)
    bench.set_defaults(run=_bench)

    text = "list the exercises, prove their graders, verify a file of solutions: gpukit exercises --help"
    exercises = commands.add_parser("exercises", help=text, description=f"{text.capitalize()}.", add_help=False)
    exercises.set_defaults(run=_exercises)

    text = "compile beforehand, on a GPU, the kernels that calls with any shape need: gpukit compile --help"
    compiling = commands.add_parser("compile", help=text, description=f"{text.capitalize()}.", add_help=False)
    compiling.set_defaults(run=_compile)

    text = "find mistakes in kernels from their source, without running anything: gpukit check file.py"
    check = commands.add_parser("check", help=text, description=f"{text.capitalize()}.", add_help=False)
    check.set_defaults(run=_check)

    text = "run a script that uses numba.cuda on the emulator: gpukit run [--trace] script.py [args]"
    commands.add_parser("run", help=text, add_help=False)

    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["run"]:
        # What follows the script's name belongs to the script, also what looks like an option of this command.
        return _run(argv[1:])
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    arguments, rest = parser.parse_known_args(argv)
    return arguments.run(parser, rest)


# A command is imported when it is asked for: the doctor has to work where NumPy or Numba do not.


def _doctor(parser, rest):
    from gpukit import doctor

    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return doctor.main()


def _bench(parser, rest):
    from gpukit import _bench

    try:
        bench = _bench.load("bench.__main__")
    except ImportError as error:
        parser.error(str(error))
    return bench.main(rest)


def _exercises(parser, rest):
    from gpukit.exercises import __main__ as exercises

    return exercises.main(rest)


def _compile(parser, rest):
    from gpukit import compiling

    return compiling.main(rest)


def _check(parser, rest):
    from warpstep.check import command

    return command.main(rest)


def _run(rest):
    from warpstep import run

    return run.main(rest)


if __name__ == "__main__":
    sys.exit(main())
