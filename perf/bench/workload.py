# workload.py - what a workload is.
# SPDX-License-Identifier: Apache-2.0
"""A workload knows its programs and their parameters; runner.py decides how often and in what order they are run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    higher_is_better: bool = True


class Workload:
    """Base class. Subclasses set name, title, metrics (the first is the main one) and define run()."""

    name = ""
    title = ""
    metrics = ()
    baseline = "kernel"
    compared = True  # whether the ratio of two columns means anything
    key = False  # has a required ratio: runs thrice in --quick too
    bound = None  # "cores": each side has a core of its own; "serial": one request at a time, one side waits for the other
    quick_columns = None  # the columns that --quick runs, if not all
    runs_min = 1
    place = None  # "containers": not on this host's loopback, but between two of them; "wire": and neither sees the other's memory
    no_unix = "the programs have no Unix sockets"  # why there is nothing in that column; None if there is

    def columns(self, columns):
        """The columns this workload is run in; those of the run, unless it compares something else."""
        return columns

    def unavailable(self, column):
        """Why this column can't be had here, or None."""
        if column.is_unix and self.no_unix:
            return self.no_unix
        return column.unavailable

    def run(self, session, column):
        """One run. Returns a Sample; raises BenchError if there is nothing to return."""
        raise NotImplementedError
