"""``gpukit exercises``: list them, prove their graders, verify a file of solutions."""

import argparse
import io
import sys

from gpukit import exercises
from gpukit.exercises import proof, verification


def main(argv=None):
    """Run the command; returns its exit status: 1 if a proof fails or a solution does not pass."""
    parser = argparse.ArgumentParser(prog="gpukit exercises", description="The exercises of the course.")
    text = "judge the starter, the solutions and the wrong answers of the exercises named, or of all"
    parser.add_argument("--prove", nargs="*", metavar="NAME", help=text)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    text = "run the notebook or script FILE, and list verdicts and scores of the exercises it checks"
    verify = commands.add_parser("verify", help=text, description=f"{text.capitalize()}.")
    verify.add_argument("file", metavar="FILE")
    arguments = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # consoles that have no squares
    if arguments.command == "verify":
        return _verify(parser, arguments.file)
    if arguments.prove is not None:
        return _prove(parser, arguments.prove)
    print(exercises.progress())
    return 0


def _prove(parser, wanted):
    try:
        chosen = [exercises.get(name) for name in wanted or exercises.names()]
    except ValueError as error:
        parser.error(str(error))
    failed = 0
    for exercise in chosen:
        found = proof.prove(exercise)
        failed += bool(found.faults)
        state = "FAILS" if found.faults else "holds"
        alike = f", alike: {', '.join(map(str, found.unnamed))}" if found.unnamed else ""
        print(f"{found.name:<24} {state}  {found.wrong} wrong answers{alike}, {found.seconds:.1f} s", flush=True)
        for fault in found.faults:
            print(f"    {fault}")
    print(f"{len(chosen) - failed} of {len(chosen)} hold")
    return int(failed > 0)


def _verify(parser, path):
    try:
        verdicts = verification.verify(path)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for found in verdicts:
        score = "" if found.score is None else f"  score {found.score:,} (par {found.par:,})"
        print(f"{found.title}{score}")
    print(f"{sum(found.passed for found in verdicts)} of {len(verdicts)} passed")
    return int(not verdicts or not all(found.passed for found in verdicts))


if __name__ == "__main__":
    sys.exit(main())
