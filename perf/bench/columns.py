# columns.py - the ways to connect two programs that are compared: kernel TCP, Unix socket, BPF sockmap, Postern.
# SPDX-License-Identifier: Apache-2.0
"""A column says what is put before a program's command line, in which cgroup it runs and which family of socket it uses."""

import os
import shlex
import shutil
from dataclasses import dataclass, field

from .process import BenchError
from .place import Place
from .sockmap import Sockmap

NAMES = ("kernel", "unix", "sockmap", "postern")


@dataclass
class Column:
    name: str
    label: str
    server_prefix: list = field(default_factory=list)
    client_prefix: list = field(default_factory=list)
    cgroup: str | None = None
    unavailable: str | None = None  # why there is nothing to see in this column
    sockmap: Sockmap | None = None
    place: Place | None = None  # two containers, if not this host's own loopback

    @property
    def host(self):
        return self.place.host if self.place else "127.0.0.1"

    @property
    def listens_on(self):
        return "0.0.0.0" if self.place else "127.0.0.1"

    @property
    def is_unix(self):
        return self.name == "unix"

    @property
    def is_postern(self):
        return self.name == "postern"


def wrapper_prefix(command):
    """The wrapper's command line, split and made absolute. Raises BenchError if it isn't there."""
    words = shlex.split(command)
    if not words:
        raise BenchError("no wrapper given")
    path = shutil.which(os.path.abspath(words[0])) or shutil.which(words[0])
    if not path:
        raise BenchError(f"{os.path.relpath(words[0])} isn't there: build Postern first, or name it with --postern")
    return [path] + words[1:]


def make(names, postern_command, work_dir):
    """The columns asked for, in the fixed order, those that can't be had with the reason."""
    columns = []
    for name in NAMES:
        if name not in names:
            continue
        if name == "kernel":
            columns.append(Column(name, "kernel TCP"))
        elif name == "unix":
            columns.append(Column(name, "Unix socket"))
        elif name == "sockmap":
            columns.append(_make_sockmap(work_dir))
        else:
            columns.append(make_postern(postern_command))
    return columns


def _make_sockmap(work_dir):
    column = Column("sockmap", "BPF sockmap")
    try:
        column.sockmap = Sockmap(work_dir)
        column.cgroup = column.sockmap.cgroup
    except (BenchError, OSError) as error:
        column.unavailable = str(error)
    return column


def make_postern(command):
    column = Column("postern", "Postern")
    try:
        prefix = wrapper_prefix(command)
        column.server_prefix = prefix
        column.client_prefix = prefix
    except BenchError as error:
        column.unavailable = str(error)
    return column


def close(columns):
    for column in columns:
        if column.sockmap:
            column.sockmap.close()
