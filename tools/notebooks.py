"""The notebooks: bring them up to date with their text, run them, record their outputs, copy them to work in."""

import argparse
import sys
import time
from pathlib import Path

import notebook_pages
import notebook_run
import notebook_solve
import notebook_text
import notebook_work


def sync(arguments):
    """Refresh notebooks/*.ipynb from notebooks/text/*.py; a changed cell loses its outputs, listings are renewed."""
    for path in notebook_text.texts(arguments.folder):
        target, changed = notebook_text.sync(path)
        print(f"{target.name}: {'refreshed' if changed else 'up to date'}")
    return 0


def run(arguments):
    """Run notebooks and write HTML pages; the notebooks themselves stay as they are.

    With --solved, the exercises' solutions run in place of their starters, and all checks must pass.
    """
    paths, build = choose(arguments.folder, arguments.names), arguments.build
    build, answers = (build / "solved", notebook_solve.answers()) if arguments.solved else (build, None)
    failures, device = [], None
    for path in paths:
        known = None if arguments.force else notebook_run.up_to_date(path, build, answers)
        if known:
            print(f"{path.stem} ... up to date ({known.seconds:.1f} s on {known.date})", flush=True)
            continue
        device = device or notebook_run.device_line()
        _attempt(failures, path, notebook_run.run, build, device, arguments.timeout, answers)
    if device or not (build / "index.html").exists():
        notebook_pages.write_pages(notebook_text.notebooks(arguments.folder), build)
    return _finish(failures, paths, f"pages: {build / 'index.html'}")


def record(arguments):
    """Sync, run, and store the outputs in notebooks/*.ipynb, to be committed."""
    sync(arguments)
    paths, failures = choose(arguments.folder, arguments.names), []
    print(f"recording on {notebook_run.device_line()}", flush=True)
    for path in paths:
        _attempt(failures, path, notebook_run.record, arguments.timeout)
    return _finish(failures, paths, f"outputs stored in {arguments.folder}")


def work(arguments):
    """Copy the notebooks to work/ for a learner; what has been changed there stays as it is."""
    for line in notebook_work.prepare(arguments.work, arguments.folder):
        print(line, flush=True)
    return 0


def fresh(arguments):
    """Copy notebooks to work/ again; copies that differ are kept in work/backups."""
    if not arguments.names:
        sys.exit("say which chapter: make fresh ONLY=03")
    for line in notebook_work.renew(choose(arguments.folder, arguments.names), arguments.work):
        print(line)
    return 0


COMMANDS = {"sync": sync, "run": run, "record": record, "work": work, "fresh": fresh}


def main(argv=None):
    """Run one command. Returns 0 if all went well, 1 if a notebook failed."""
    parser = argparse.ArgumentParser(
        prog="tools/notebooks.py",
        description=__doc__,
        epilog="\n".join(f"{name:8}{command.__doc__.splitlines()[0]}" for name, command in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root = notebook_text.ROOT
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a number, or first letters (default: all notebooks)")
    parser.add_argument("--folder", type=Path, default=root / "notebooks", help="the notebooks (default: notebooks)")
    parser.add_argument("--work", type=Path, default=notebook_work.WORK, help="the learner's copies (default: work)")
    parser.add_argument("--build", type=Path, default=root / "build", help="where pages go (default: build)")
    parser.add_argument("--force", action="store_true", help="also run what is up to date")
    parser.add_argument("--solved", action="store_true", help="run with the solutions of the exercises")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one cell may take (default: 600)")
    arguments = parser.parse_intermixed_args(argv)
    return COMMANDS[arguments.command](arguments)


def choose(folder, names):
    """Return the notebooks of ``folder`` that are asked for, all without ``names``; exit if there are none."""
    paths = notebook_text.notebooks(folder)
    by_name = {name: _named(name, paths) for name in names}
    unknown = [name for name, found in by_name.items() if not found]
    if unknown or not paths:
        wanted = f"whose name begins with {' or '.join(unknown)}" if unknown else "at all"
        sys.exit(f"no notebook {wanted} in {folder}")
    chosen = {path for found in by_name.values() for path in found}
    return [path for path in paths if path in chosen or not by_name]


def _named(name, paths):
    """Return the chapter with this number, so that 05 is not 05b too; otherwise all whose names begin so."""
    numbered = [path for path in paths if notebook_text.number(path) == name]
    return numbered or [path for path in paths if path.stem.startswith(name)]


def _attempt(failures, path, action, *values):
    """Call ``action`` on one notebook with a progress line. A failure is printed and added to ``failures``."""
    print(f"{path.stem} ... ", end="", flush=True)
    began = time.perf_counter()
    try:
        action(path, *values)
    except (notebook_run.NotebookError, notebook_solve.StarterError) as error:
        failures.append(path.stem)
        print(f"FAILED after {time.perf_counter() - began:.1f} s\n{error}", flush=True)
    else:
        print(f"{time.perf_counter() - began:.1f} s", flush=True)


def _finish(failures, paths, done):
    if failures:
        print(f"{len(failures)} of {len(paths)} notebooks failed: {', '.join(failures)}")
        return 1
    print(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
