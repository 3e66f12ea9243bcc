"""The commands of `hypha-tui` that look and change nothing: their options, and what they call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from hypha_tui.cli import HERE, run_command
from hypha_tui.options import Reach
from hypha_tui.twin.listing import Listing


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Form:
    """What comes out."""

    json: Annotated[bool, Parameter(name="--json", help="One JSON document; watched, a line each")] = False
    watch: Annotated[
        float | None, Parameter(help="Go on and print changes, at most once in so many seconds (1 if not said)")
    ] = None

    def listing(self) -> Listing:
        """The same for the commands."""
        return Listing(as_json=self.json, watch_s=self.watch)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ListForm:
    """What comes out of a list, and in which form."""

    json: Annotated[bool, Parameter(name="--json", help="One JSON document; watched, a line each")] = False
    csv: Annotated[bool, Parameter(name="--csv", help="CSV; numbers are seconds, bytes, shares")] = False
    watch: Annotated[
        float | None, Parameter(help="Go on and print changes, at most once in so many seconds (1 if not said)")
    ] = None
    filter: Annotated[str, Parameter(help="Only rows that match, as after / in the terminal")] = ""
    columns: Annotated[str, Parameter(help="These columns, by key, apart by commas")] = ""
    sort: Annotated[str, Parameter(help="By this column")] = ""
    reverse: Annotated[bool, Parameter(help="The other way round")] = False
    wide: Annotated[bool, Parameter(help="All columns")] = False

    def listing(self) -> Listing:
        """The same for the commands."""
        return Listing(self.json, self.csv, self.watch, self.filter, self.columns, self.sort, self.reverse, self.wide)


ONCE = Form()
WHOLE = ListForm()


def overview(*, reach: Reach = HERE, form: Form = ONCE) -> int:
    """Tell the cluster in numbers, and which jobs go on."""
    from hypha_tui.twin import reports

    return run_command(reports.overview(reach.endpoint(), form.listing()))


def peers(*, reach: Reach = HERE, form: ListForm = WHOLE) -> int:
    """List the nodes of the cluster."""
    return _objects(reach, "peers", form)


def leases(*, reach: Reach = HERE, form: ListForm = WHOLE) -> int:
    """List leases with what is left of them."""
    return _objects(reach, "leases", form)


def transfers(*, reach: Reach = HERE, form: ListForm = WHOLE) -> int:
    """List slices, updates and other bytes on their way."""
    return _objects(reach, "transfers", form)


def jobs(*, reach: Reach = HERE, form: ListForm = WHOLE) -> int:
    """List jobs."""
    return _objects(reach, "jobs", form)


def datasets(*, reach: Reach = HERE, form: ListForm = WHOLE) -> int:
    """List datasets and who serves them."""
    return _objects(reach, "datasets", form)


def events(*, reach: Reach = HERE, form: ListForm = WHOLE) -> int:
    """List the last events of all nodes."""
    from hypha_tui.twin import lists

    return run_command(lists.events(reach.endpoint(), form.listing()))


def metrics(job: str, /, *, reach: Reach = HERE, form: ListForm = WHOLE) -> int:
    """List the values of a job's curves, by its id or name."""
    from hypha_tui.twin import lists

    return run_command(lists.metrics(reach.endpoint(), job, form.listing()))


def slices(job: str, /, *, reach: Reach = HERE, form: ListForm = WHOLE) -> int:
    """Show the state of every slice of a job's present pass: a letter each, or with options a list."""
    from hypha_tui.twin import lists

    return run_command(lists.slices(reach.endpoint(), job, form.listing()))


def logs(
    job: str,
    task: str = "",
    /,
    *,
    lines: Annotated[int, Parameter(help="How many lines of each task")] = 200,
    reach: Reach = HERE,
    form: Form = ONCE,
) -> int:
    """Print the last lines that a job's tasks wrote."""
    from hypha_tui.twin import reports

    return run_command(reports.logs(reach.endpoint(), job, task, form.listing(), lines=lines))


def node(*, reach: Reach = HERE, form: Form = ONCE) -> int:
    """Tell who the node is that is asked."""
    from hypha_tui.twin import reports

    return run_command(reports.node(reach.endpoint(), form.listing()))


def inspect(kind: str, id: str, /, *, reach: Reach = HERE, form: Form = ONCE) -> int:
    """Tell one object in full, with the events about it: peer, lease, transfer, job or dataset, by id or name."""
    from hypha_tui.twin import reports

    return run_command(reports.inspect(reach.endpoint(), kind, id, form.listing()))


def _objects(reach: Reach, what: str, form: ListForm) -> int:
    from hypha_tui.twin import lists

    return run_command(lists.objects(reach.endpoint(), what, form.listing()))
