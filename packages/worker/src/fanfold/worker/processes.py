"""The backend that is one machine: a process for each rank, so that ranks run at the same time and can meet.

Each process starts with its rank environment and the user's `worker_env` in place, so that what the interpreter, the
loader or a user's module reads at import is there. Large values lie in memory that driver and ranks map, written once.
What ranks print appears on the driver's standard error, each line with the rank's name.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from fanfold.worker import messages as say
from fanfold.worker.address_book import address_of
from fanfold.worker.backend import Request, StartedRank, StartOrder
from fanfold.worker.errors import GroupUsageError, WorkerStartError
from fanfold.worker.limits import Deadline
from fanfold.worker.parcel import parcel
from fanfold.worker.ports import HeldPort
from fanfold.worker.rank import RankInfo, environment_of, rank_infos
from fanfold.worker.rank_link import ProcessHandle, RankLink
from fanfold.worker.relay import Host, Question, Relay
from fanfold.worker.replies import AwaitsReplies, error_in
from fanfold.worker.stuck import RankStatus
from fanfold.worker.switchboard import Switchboard
from fanfold.worker.visiting import arrive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

BUSY_GRACE = 2.0  # seconds that a rank in the middle of a call gets to end it when the group is closed
KILL_GRACE = 2.0  # seconds until a killed process has to be gone
_PROGRAM = "import sys; from fanfold.worker.rank_process import main; sys.exit(main(int(sys.argv[1])))"


class Door:
    """How the backend reaches a rank: its link, and the board that serves it."""

    def __init__(self, link: RankLink, board: Switchboard, port: HeldPort) -> None:
        self.link = link
        self.board = board
        self.port = port


class ProcessesBackend(AwaitsReplies):
    """Ranks in processes of this machine.

    Args:
        python: The interpreter to run them with; the driver's own unless given.
    """

    name = "processes"

    def __init__(self, *, python: str | None = None) -> None:
        if not hasattr(socket, "send_fds"):
            raise GroupUsageError(
                "the processes backend needs Unix sockets that pass descriptors; this system has none"
            )
        super().__init__()
        self._python = python or sys.executable
        self._questions = itertools.count(1)

    def start(self, order: StartOrder, deadline: Deadline) -> Sequence[StartedRank]:
        """Start all processes at once and return when each has built its worker."""
        port, board = HeldPort("127.0.0.1"), Switchboard(order.group, self._changed)
        doors: list[Door] = []
        try:
            infos = rank_infos(order.slots, order.group, self.name, port.address)
            doors.extend(Door(self._launch(order, info, board), board, port) for info in infos)
            return self._ready(order, doors, deadline)
        except BaseException:  # Ctrl-C too leaves nothing running
            self._kill(doors)
            board.close(KILL_GRACE)
            port.release()
            raise

    def renew(self, order: StartOrder, ranks: Sequence[StartedRank], deadline: Deadline) -> Sequence[StartedRank]:
        """Kill these ranks and start them anew in the same places under the same names."""
        self._kill(rank.door for rank in ranks)
        doors: list[Door] = []
        try:
            before = [rank.door for rank in ranks]
            doors.extend(Door(self._launch(order, old.link.info, old.board), old.board, old.port) for old in before)
            return self._ready(order, doors, deadline)
        except BaseException:
            self._kill(doors)
            raise

    def _launch(self, order: StartOrder, info: RankInfo, board: Switchboard) -> RankLink:
        recipe = parcel(order.recipe.for_rank(info.rank), f"the recipe of {order.recipe.cls.__qualname__}")
        here, there = socket.socketpair()
        here.setblocking(False)
        with there:
            process = subprocess.Popen(  # noqa: S603  # our own program in the interpreter that runs this
                [self._python, *_interpreter_flags(), "-c", _PROGRAM, str(there.fileno()), order.names[info.rank]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[there.fileno()],
                env=environment_of(info, order.environment),
                process_group=0,  # Ctrl-C reaches the driver, which ends its ranks; not the ranks beside it
            )
        link = RankLink(info, order.names[info.rank], process, here, self._changed)
        board.add(link)
        link.post(say.Boot(info, link.name, list(sys.path), list(sys.argv), recipe))
        return link

    def _ready(self, order: StartOrder, doors: Sequence[Door], deadline: Deadline) -> list[StartedRank]:
        self._wait_until_ready(order, [door.link for door in doors], deadline)
        return [self._started(door) for door in doors]

    def _started(self, door: Door) -> StartedRank:
        link = door.link
        assert link.ready is not None  # just waited for
        return StartedRank(link.info.rank, link.name, link.ready.node, link.process.pid, door)

    def _wait_until_ready(self, order: StartOrder, links: Sequence[RankLink], deadline: Deadline) -> None:
        def settled() -> bool:
            return all(link.ready for link in links) or any(link.start_failure or link.lost for link in links)

        with self._changed:
            self._changed.wait_for(settled, deadline.left())
            for link in links:
                _refuse_failed_start(order, link)
            missing = [link.place for link in links if not link.ready]
        if missing:
            deadline.check(missing=", ".join(missing))

    def place(self, value: Any) -> Any:
        """Copy a value out of the driver's hands, once, however many ranks read it."""
        return parcel(value, "an argument")

    def call(self, rank: StartedRank, request: Request) -> ProcessHandle:
        """Send a call; the rank runs it after the calls that it has already."""
        method = request.method if isinstance(request.method, str) else parcel(request.method, "a function")
        handle: ProcessHandle = rank.door.link.submit(
            request.label,
            lambda call: say.Run(call, method, *request[1:6], request.label),
        )
        return handle

    def cancel(self, handles: Sequence[ProcessHandle], limit: float) -> list[str]:
        """Drop what has not begun, flag what is running; say for each "dropped", "running" or "finished"."""
        open_handles = [handle for handle in handles if handle.reply is None]
        for handle in open_handles:
            handle.link.post(say.Cancel(handle.call))
        with self._changed:
            self._changed.wait_for(lambda: all(_cancel_answer(handle) for handle in open_handles), limit)
            # A rank that says nothing in time is inside something that does not let its other thread run.
            return [
                (_cancel_answer(handle) or "running") if handle in open_handles else "finished" for handle in handles
            ]

    def ask(self, ranks: Sequence[StartedRank], limit: float) -> dict[int, RankStatus]:
        """Ask ranks where they are, all at once; those that do not answer are there with a note."""
        return self._ask([rank.door.link for rank in ranks], limit)

    def _ask(self, links: Sequence[RankLink], limit: float) -> dict[int, RankStatus]:
        question = next(self._questions)
        for link in links:
            link.post(say.Ask(question))
        with self._changed:
            self._changed.wait_for(lambda: all(link.lost or question in link.answers for link in links), limit)
            return {link.info.rank: _status(link, question, limit) for link in links}

    def lost(self, ranks: Sequence[StartedRank]) -> dict[int, Exception]:
        """Return, by rank, what is known about the ranks that are gone."""
        with self._changed:
            return {rank.rank: rank.door.link.lost for rank in ranks if rank.door.link.lost is not None}

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:
        """End ranks, rank 0 last: those in the middle of a call get a moment to end it, then they are killed."""
        deadline = Deadline(limit, "the end of ranks")
        for wave in ([rank for rank in ranks if rank.rank != 0], [rank for rank in ranks if rank.rank == 0]):
            self._stop(list(wave), deadline.left() if wave and wave[0].rank == 0 else deadline.left() / 2)
        self._kill(rank.door for rank in ranks)
        for door in {id(rank.door.board): rank.door for rank in ranks}.values():
            door.board.close(KILL_GRACE)
            door.port.release()

    def _stop(self, ranks: Sequence[StartedRank], limit: float) -> None:
        links = [rank.door.link for rank in ranks]
        for rank in ranks:
            rank.door.board.expect_end(rank.door.link)
            rank.door.link.post(say.Stop())
        with self._changed:
            self._changed.wait_for(lambda: all(link.lost or link.calls for link in links), limit)
            self._changed.wait_for(lambda: all(link.lost for link in links), min(limit, BUSY_GRACE))

    def _kill(self, doors: Iterable[Door]) -> None:
        doors = list(doors)
        for door in doors:
            door.board.expect_end(door.link)
            door.link.process.kill()
        with self._changed:
            self._changed.wait_for(lambda: all(door.link.lost for door in doors), KILL_GRACE)

    def ticket(self, ranks: Sequence[StartedRank]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what reaches these ranks from a process of the same user on this machine, through a relay here."""
        board: Switchboard = ranks[0].door.board
        with self._changed:
            board.relay = board.relay or Relay(self._host(board))
        places = tuple((rank.rank, rank.name, rank.node, rank.pid) for rank in ranks)
        return arrive, (board.relay.address, address_of(self, ranks), places)

    def _host(self, board: Switchboard) -> Host:
        def submit(rank: int, run: say.Run) -> ProcessHandle:
            return board.links[rank].submit(run.label, lambda call: run._replace(call=call))

        def answer(question: Question, calls: Mapping[int, Any]) -> Any:
            links = [board.links[rank] for rank in question.about if question.what != "cancel"]
            match question.what:
                case "ask":
                    return self._ask(links, question.limit)
                case "lost":
                    return {link.info.rank: link.lost for link in links if link.lost is not None}
            wanted = [number for number in question.about if number in calls]
            found = self.cancel([calls[number] for number in wanted], question.limit)
            return dict(zip(wanted, found, strict=True))

        return Host(submit, self.on_finished, answer)


def _interpreter_flags() -> list[str]:
    optimized = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    return [*optimized, *(f"-W{option}" for option in sys.warnoptions)]


def _refuse_failed_start(order: StartOrder, link: RankLink) -> None:
    what = f"{link.place} could not build its {order.recipe.cls.__qualname__}"
    if link.start_failure is not None:
        error = error_in(link.start_failure)
        raise WorkerStartError(f"{what}: {type(error).__name__}: {error}\n{link.start_failure.trace}") from error
    if link.lost is not None:
        raise WorkerStartError(f"{what}: {link.lost}") from link.lost


def _cancel_answer(handle: ProcessHandle) -> str:
    answer = handle.link.found.get(handle.call, "")
    return answer or ("finished" if handle.reply is not None else "")


def _status(link: RankLink, question: int, limit: float) -> RankStatus:
    if question in link.answers:
        return link.answers.pop(question).status
    note = (
        str(link.lost.args[0])
        if link.lost
        else f"did not answer within {limit:g} s: its process is stopped, or holds the interpreter"
    )
    return RankStatus(link.info.rank, note=note)
