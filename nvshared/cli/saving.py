# SPDX-License-Identifier: Apache-2.0
"""Verbs that save programs on a disk and restore them."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvshared import names
from nvshared.cli.progress import Followed, Picture, Work, watching
from nvshared.cli.settings import set_terms
from nvshared.cli.verb import TARGET, Options, argument, show, show_table, verb
from nvshared.control import Daemon, unit
from nvshared.control.snapshot import ClientSnapshot, SavedRow
from nvshared.errors import Interrupted, InvalidArgs, NvshareError
from nvshared.parser import absolute
from nvshared.quantity import counted
from nvshared.tui import tables
from nvshared.tui.tables import Column
from nvshared.units import SECOND

TERM = "save-at-shutdown"
SERVICE = "nvshare-saved.service"       # saves and restores while it stops and starts
LONGEST = 4000.0                        # most seconds until nvshared replies: it waits for an hour
LOOKS_EVERY = 1.0                       # seconds between two looks at the folders


def _folder(text: str) -> str:
    """The absolute path of a folder. Raises InvalidArgs for "", as of a variable that is not set.

    nvshared would take "" for the usual folder."""
    if not text:
        raise InvalidArgs("'' is no folder", "give its path, or leave out the option")
    return str(absolute(text))


@verb(
    "save",
    argument(*[TARGET[0][0][0], "PID|TENANT", "a program, or all of a tenant: user:NAME, unit:NAME "
               "or job:ID"], nargs="?", type=TARGET[0][1]["type"]),
    argument("--all", "", "all programs"),
    argument("--marked", "", "the programs of tenants with save-at-shutdown = on"),
    argument("--to", "DIR", "save in this folder, which only root may write to (default: "
             "/var/lib/nvshare-saved); needs permission", type=_folder),
    argument("--at-shutdown", "on|none", "set whether the tenant's programs are saved when the "
             "machine shuts down, and restored when it starts, by nvshare-saved.service; none: as "
             "the configuration says; needs permission",
             choices=["on", "none"]),
    argument("--list", "", "list saved programs, with the reason for failed restores"),
    argument("--remove", "FOLDER", "delete a saved program"))
def save(options: Options) -> None:
    """Save a program on the disk and end it, until it is restored.

    Parks the program and has CRIU write all of its memory to a folder that belongs to the program's
    user. The program ends. nvsharectl restore brings it back, also after the machine was started
    again: it goes on where it was, with its process id, files and terms. Needs CRIU 4.0 or later.
    Its TCP connections are closed. If it cannot be saved, it goes on, and the reason is printed.
    Programs in containers, with an open terminal, or that cannot be parked are not saved. You may
    save your own programs; others need permission.

        nvsharectl save 4711                       # saves and ends process 4711
        nvsharectl save --list                     # the saved programs
        nvsharectl save --all                      # saves and ends all programs
        nvsharectl save user:alice --at-shutdown on  # whenever the machine shuts down
    """
    forms = [options.target is not None, options.all, options.marked, options.list,
             options.remove is not None]
    if sum(forms) != 1:
        raise InvalidArgs("no single program or list to save is given",
                          "give one of: PID, TENANT, --all, --marked, --list, --remove FOLDER")
    if options.at_shutdown is not None:
        if not isinstance(options.target, str):
            raise InvalidArgs("--at-shutdown is for a tenant", f"give {names.TENANT_KINDS}")
        set_terms(options, {TERM: int(options.at_shutdown == "on")})
        if options.at_shutdown == "on" and unit.runs_here() and (
                unit.state(SERVICE).get("ActiveState") != "active"):
            print(f"nvsharectl: warning: {SERVICE} does not run, so a shutdown saves no program; "
                  f"run: systemctl enable --now {SERVICE}", file=sys.stderr)
    elif options.list:
        _list(options)
    elif options.remove is not None:
        with Daemon(options.bus, LONGEST) as daemon:
            daemon.remove_saved(options.remove)
        show(options, {"removed": options.remove}, lambda: print(f"{options.remove} is deleted."))
    else:
        _save(options)


def _save(options: Options) -> None:
    saved, failed = list[dict[str, object]](), dict[int, NvshareError]()
    followed, called = Followed(), dict[int, str]()

    def look(daemon: Daemon) -> Picture:
        work = followed.work([one for one in daemon.snapshot().clients
                              if one.pid in called and one.state == "parking"])
        work = work or [Work(called[one.pid], one.state, one.size, one.bytes)
                        for one in (daemon.saved(options.to or "") if called else ())
                        if one.pid in called and one.state == "saving"]
        return Picture(work, len(saved) + len(failed), len(called))

    with Daemon(options.bus, LONGEST) as daemon, watching(options, look, LOOKS_EVERY) as progress:
        chosen = _chosen(daemon, options)
        called.update((one.pid, tables.process(one)) for one in chosen)
        for client in chosen:
            name = called[client.pid]
            try:
                folder = daemon.save(client.id, options.to or "")
            except NvshareError as error:
                failed[client.pid] = error
                continue
            except KeyboardInterrupt:
                raise Interrupted(
                    f"interrupted, but nvshared may go on to save {name}, which then ends",
                    "see: nvsharectl save --list", done=saved) from None
            saved.append({"pid": client.pid, "folder": folder})
            if not options.json:
                progress.say(f"{name} is saved: {folder}")
    _report(options, saved, "pid", failed, "saved")


def _chosen(daemon: Daemon, options: Options) -> list[ClientSnapshot]:
    clients = daemon.snapshot().clients
    if options.all:
        return list(clients)
    if isinstance(options.target, int):
        ids = daemon.clients_of(options.target)
        return [one for one in clients if one.id in ids]
    if options.target is not None:
        name = daemon.tenant(options.target).name
        return [one for one in clients
                if name in (one.tenant, *daemon.tenant(one.tenant).within)]
    return [one for one in clients if any(
        daemon.tenant(name).value(TERM)
        for name in (one.tenant, *daemon.tenant(one.tenant).within))]


def _report(options: Options, done: list[dict[str, object]], key: str,
            failed: Mapping[Any, NvshareError], become: str) -> None:
    """Raises one error for all that failed: of their own kind, if that is the same."""
    if failed:
        kinds = {type(error) for error in failed.values()}
        hints = {error.hint for error in failed.values()}
        reasons = dict.fromkeys(error.message for error in failed.values())
        raise (kinds.pop() if len(kinds) == 1 else NvshareError)(
            f"{counted(len(failed), 'program')} could not be {become}: {'; '.join(reasons)}",
            hints.pop() if len(hints) == 1 else "", done=done,
            failed=[{key: one, "why": error.message} for one, error in failed.items()])
    show(options, {become: done},
         lambda: None if done else print(f"No program is to be {become}."))


def _list(options: Options) -> None:
    with Daemon(options.bus, LONGEST) as daemon:
        found = daemon.saved(options.to or "")
    columns: list[Column] = [
        Column("FOLDER", lambda one: one.folder), Column("USER", lambda one: names.user(one.uid)),
        Column("PID", lambda one: str(one.pid), right=True), Column("STATE", lambda one: one.state),
        Column("SIZE", lambda one: tables.size(one.size), right=True),
        Column("SAVED", lambda one: time.strftime(
            "%Y-%m-%d %H:%M", time.localtime(one.saved / SECOND))),
        Column("NOT RESTORED BECAUSE", lambda one: one.why)]
    show(options, {"saved": [one._asdict() for one in found]},
         lambda: show_table(columns, found) if found else print("No program is saved."))


@verb(
    "restore",
    argument("folder", "FOLDER", "a saved program, as nvsharectl save --list shows it", nargs="?"),
    argument("--all", "", "all that are saved: root's of all users, else your own"),
    argument("--from", "DIR", "with --all: those that were saved there with --to", dest="to",
             type=_folder))
def restore(options: Options) -> None:
    """Bring back a program that was saved.

    The program goes on where it was, as the same user, with the same process id. It is parked: at
    its next use of the GPU it waits for its turn, as any program. Its folder stays until it has
    used the GPU. If it cannot be restored, its folder stays, too, and the reason is printed and
    kept for nvsharectl save --list. You may restore your own programs; others need permission.

        nvsharectl restore /var/lib/nvshare-saved/python-4711-20261129T001530  # one program
        nvsharectl restore --all                                               # all of them
    """
    if (options.folder is None) is not options.all:
        raise InvalidArgs("no folder to restore is given", "give a FOLDER, or --all")
    done, failed = list[dict[str, object]](), dict[str, NvshareError]()
    folders = list[str]()

    def look(daemon: Daemon) -> Picture:
        return Picture([
            Work(Path(one.folder).name, one.state) for one in daemon.saved(options.to or "")
            if one.state == "restoring" and {one.folder, Path(one.folder).name} & {*folders}],
            len(done) + len(failed), len(folders))

    with Daemon(options.bus, LONGEST) as daemon, watching(options, look, LOOKS_EVERY) as progress:
        folders += _own(daemon.saved(options.to or "")) if options.all else [options.folder]
        for folder in folders:
            try:
                pid = daemon.restore(folder)
            except NvshareError as error:
                if len(folders) == 1:
                    raise
                failed[folder] = error
                continue
            except KeyboardInterrupt:
                raise Interrupted(
                    f"interrupted, but nvshared may go on to restore {folder}",
                    "see: nvsharectl save --list", done=done) from None
            done.append({"folder": folder, "pid": pid})
            if not options.json:
                progress.say(f"Process {pid} is back, from {folder}.")
    _report(options, done, "folder", failed, "restored")


def _own(found: list[SavedRow]) -> list[str]:
    """The folders of saved programs that this user restores, in the order in which they were."""
    return [one.folder for one in sorted(found, key=lambda one: one.saved)
            if one.state == "saved" and os.geteuid() in (0, one.uid)]
