"""The bridge between the pure core and the world: event inbox -> dispatcher -> commands carried out.

Whatever happens (a request, a departure, a model that is ready) is posted as an event. Events are handled
one after the other on the event loop; carrying out a command may post further ones. Nothing here decides;
nothing else calls the dispatcher. The gateway submits jobs and gets a `Ticket` for each.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import assert_never

import structlog

from swaplane.config.settings import ModelSettings, Settings
from swaplane.core.commands import (
    AbortJob,
    Command,
    EndJob,
    PriorityCause,
    RecordDispatch,
    RunJob,
    StartModel,
    StopCause,
    StopModel,
    TellPriority,
)
from swaplane.core.dispatcher import Dispatcher
from swaplane.core.events import (
    Event,
    Job,
    JobArrived,
    JobEnded,
    JobLeft,
    JobsRestored,
    ModelExited,
    ModelReady,
    ModelStartFailed,
    ModelStopped,
    PlanChanged,
    PriorityChanged,
    ShutdownRequested,
    TimePassed,
    Turn,
    UnloadRequested,
)
from swaplane.core.outcomes import Outcome
from swaplane.core.state import ModelPhase
from swaplane.observe.logs import LogHub
from swaplane.observe.metrics import Metrics
from swaplane.processes.process import LaunchSpec
from swaplane.processes.supervisor import Supervisor
from swaplane.ticket import Dropped, Ended, Run, Ticket, Wish

log = structlog.get_logger("swaplane.runtime")

#: How many ended jobs are remembered, so that asking for one by id tells how it ended.
ENDED_REMEMBERED = 1000

LAST_BYTES_S = 2.0  #: how long the last bytes of a server that is gone may take to pass


class Runtime:
    """One gateway's dispatcher, model processes and jobs. `presence` is for its guards: see `processes.presence`."""

    def __init__(self, settings: Settings, *, logs: LogHub, metrics: Metrics, presence: int | None = None) -> None:
        self.settings = settings
        self.logs = logs
        self.metrics = metrics
        self.dispatcher = Dispatcher(settings.plan())
        self.supervisor = Supervisor(self.post, logs)
        self.recent: OrderedDict[str, Ended] = OrderedDict()
        self.stopped = asyncio.Event()  #: set at the end of `shut_down`; whatever streams without an end ends then
        self.watchers: list[Callable[[Ticket, Outcome | None], None]] = []  #: told of every change of a job
        self._presence = presence
        self._inbox: deque[Event] = deque()
        self._draining = False
        self._tickets: dict[str, Ticket] = {}
        self._arrivals = 0
        self._ids = 0
        self._epoch = os.urandom(2).hex()
        self._wake: tuple[float, asyncio.TimerHandle] | None = None
        self._gone: dict[str, list[asyncio.Future[None]]] = {}
        self._quiet: asyncio.Future[None] | None = None
        self._hurried = False  # told, perhaps before the shutdown began, that running jobs are not waited for
        self._doubts: set[asyncio.Task[None]] = set()
        self._open_logs()

    def __repr__(self) -> str:
        return f"<Runtime {self.dispatcher!r}>"

    # Jobs.

    def avoid_ids(self, epochs: Collection[str]) -> None:
        """Give no job an id that begins with one of these: an earlier gateway's jobs are known by them."""
        while self._epoch in epochs:
            self._epoch = os.urandom(2).hex()

    def next_id(self) -> str:
        """An id that no other job has."""
        self._ids += 1
        return f"{self._epoch}-{self._ids}"

    def submit(
        self,
        model: ModelSettings,
        *,
        member: str,
        priority: int,
        label: str,
        key: str = "",
        body_bytes: int = 0,
        max_wait_s: float | None = None,
        job_id: str | None = None,
    ) -> Ticket:
        """Take in a request for a model; its ticket's `turn` tells when and whether it is run.

        `job_id` is one that `next_id` gave: the job was promised its place, and no limit refuses it. Without it the
        job gets the next one.
        """
        wish = Wish(
            job_id=job_id or self.next_id(),
            model=model,
            member=member,
            priority=priority,
            label=label,
            submitted_at=time.monotonic(),
            key=key,
            body_bytes=body_bytes,
            max_wait_s=max_wait_s,
        )
        ticket = self._ticket(wish)
        self.post(JobArrived(job=ticket.job, promised=job_id is not None))
        return ticket

    def restore(self, wishes: Iterable[Wish], turns: Iterable[Turn]) -> list[Ticket]:
        """Take in at once what an earlier gateway accepted, in order of arrival, and its members' turns."""
        tickets = [self._ticket(wish) for wish in wishes]
        self.post(JobsRestored(jobs=tuple(ticket.job for ticket in tickets), turns=tuple(turns)))
        return tickets

    def _ticket(self, wish: Wish) -> Ticket:
        self._arrivals += 1
        job = Job(
            id=wish.job_id,
            seq=self._arrivals,
            model=wish.model.id,
            member=wish.member,
            priority=wish.priority,
            submitted_at=wish.submitted_at,
            label=wish.label,
            key=wish.key,
            bytes=wish.body_bytes,
            max_wait_s=wish.max_wait_s,
            ran_before=wish.ran_before,
        )
        ticket = Ticket(self, job, wish.model, self.dispatcher.rules.band_of(wish.priority).name)
        self._tickets[job.id] = ticket
        self.job_changed(ticket)
        return ticket

    def refusal(self, model: ModelSettings, *, member: str, key: str, priority: int, body_bytes: int) -> Dropped | None:
        """How a job would be refused if it were submitted now; None: it would be taken."""
        job = Job(
            id="",
            seq=0,
            model=model.id,
            member=member,
            priority=priority,
            submitted_at=time.monotonic(),
            key=key,
            bytes=body_bytes,
        )
        refusal = self.dispatcher.refusal(job, job.submitted_at)
        return None if refusal is None else self._dropped(refusal, key, waited_s=0.0)

    def set_priority(self, job_id: str, priority: int) -> bool:
        """Give a job another priority; False when it does not wait."""
        if job_id not in self.dispatcher.queue:
            return False
        self.post(PriorityChanged(job_id=job_id, priority=priority))
        return True

    def ticket(self, job_id: str) -> Ticket | None:
        """The ticket of a job that waits or runs."""
        return self._tickets.get(job_id)

    def cancel(self, job_id: str) -> bool:
        """End a job by request, whether it waits or runs; False when there is no such job now."""
        if job_id not in self._tickets:
            return False
        self.post(JobLeft(job_id=job_id, cancelled=True))
        return True

    def job_left(self, ticket: Ticket) -> None:
        """Called by tickets only."""
        self.post(JobLeft(job_id=ticket.job.id))

    def job_ended(self, ticket: Ticket, outcome: Outcome) -> None:
        """Called by tickets only."""
        if ticket.job.id not in self._tickets:
            return
        if ticket.sent_at is None:  # its request was ended from outside while it waited
            self.job_left(ticket)
            return
        self._close(ticket, outcome)
        event = JobEnded(job_id=ticket.job.id, outcome=outcome)
        if outcome is Outcome.UPSTREAM_BROKEN:
            # A connection breaks before the exit of its server is known. The place is not given on until
            # it is known, or the next job would be sent to a dead server and fail too.
            doubt = asyncio.get_running_loop().create_task(self.supervisor.assured(ticket.job.model))
            self._doubts.add(doubt)
            doubt.add_done_callback(lambda _: self.post(event))
            doubt.add_done_callback(self._doubts.discard)
        else:
            self.post(event)

    def job_changed(self, ticket: Ticket, outcome: Outcome | None = None) -> None:
        """Tell the watchers what became of a job; with an outcome, that it is over."""
        for watcher in self.watchers:
            watcher(ticket, outcome)

    # Models and lanes.

    def is_ready(self, model: str) -> bool:
        """Whether the model's server passed its health check and has not been told to stop."""
        state = self.dispatcher.models.get(model)
        return state is not None and state.phase is ModelPhase.READY

    def backoff_s(self, model: str) -> float:
        """For how many seconds jobs of a model that keeps failing to start are refused; not above 0: they are not."""
        state = self.dispatcher.models.get(model)
        return 0.0 if state is None else state.retry_at - time.monotonic()

    async def assured(self, model: str) -> None:
        """Return when it is known whether a model's server still lives; see `Supervisor.assured`."""
        await self.supervisor.assured(model)

    def proxy_of(self, model: str) -> str:
        """The base URL of the model's running server, which may be older than the configuration."""
        spec = self.supervisor.spec(model)
        return self.settings.models[model].proxy if spec is None else spec.proxy

    async def unload(self, model: str, cause: StopCause = StopCause.UNLOAD) -> None:
        """Stop a model's server, cutting its running jobs; returns when nothing of it is left."""
        self.post(UnloadRequested(model=model, cause=cause))
        await self.gone(model)

    async def gone(self, model: str) -> None:
        """Return when nothing is left of a server that has been told to stop; at once when none has."""
        state = self.dispatcher.models.get(model)
        if state is not None and state.phase is ModelPhase.STOPPING:
            gone = asyncio.get_running_loop().create_future()
            self._gone.setdefault(model, []).append(gone)
            await gone

    def reload(self, settings: Settings) -> None:
        """Work by other settings from now on; see `PlanChanged` for what survives."""
        self.settings = settings
        self._open_logs()
        self.post(PlanChanged(plan=settings.plan()))

    def stop_draining(self) -> None:
        """Do not wait for running jobs, or no longer, in the shutdown that has begun or is about to."""
        self._hurried = True
        self._drained()

    def _drained(self) -> None:
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    async def shut_down(self, *, drain_s: float, stop_s: float) -> None:
        """End waiting jobs, let running ones finish for `drain_s`, stop all models within about `stop_s`."""
        self.post(ShutdownRequested())
        if self.dispatcher.grants() and not self._hurried:
            self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._quiet], timeout=drain_s)
        for ticket in list(self._tickets.values()):
            ticket.cut(Outcome.STOPPED_RUNNING)
        await self.supervisor.close(stop_s)
        if self._wake is not None:
            self._wake[1].cancel()
        self.stopped.set()

    def _open_logs(self) -> None:
        for model in self.settings.models:
            self.logs.model(model)

    # Events in, commands out.

    def post(self, event: Event) -> None:
        """Take in what happened. Safe to call while a command is being carried out."""
        self._inbox.append(event)
        if self._draining:
            return
        self._draining = True
        try:
            while self._inbox:
                event = self._inbox.popleft()
                self._observe(event)
                for command in self.dispatcher.handle(event, time.monotonic()):
                    self._carry_out(command)
        finally:
            self._draining = False
        self._set_wake()
        if not self.dispatcher.grants():
            self._drained()

    def _observe(self, event: Event) -> None:
        match event:
            case ModelReady():
                self.metrics.model_ready(event.model, event.load_s)
            case ModelStopped() | ModelExited() | ModelStartFailed():
                self._cut_orphans(event.model)
                for gone in self._gone.pop(event.model, []):
                    if not gone.done():  # who waited for it may have given up
                        gone.set_result(None)
            case _:
                pass

    def _cut_orphans(self, model: str) -> None:
        """End the jobs of a server that is gone; soon, because what it sent last may still be on its way.

        Most end by themselves with their connection, but one whose client does not read is not even looked at.
        """
        orphans = [each for each in self._tickets.values() if each.job.model == model and each.sent_at is not None]
        for ticket in orphans:
            asyncio.get_running_loop().call_later(LAST_BYTES_S, ticket.cut, Outcome.UPSTREAM_BROKEN)

    def _carry_out(self, command: Command) -> None:
        match command:
            case StartModel():
                settings = self.settings.models[command.model]
                self.metrics.model_started(command.model, settings.lane, command.cause)
                self.supervisor.start(_launch_spec(settings, self._presence, self.settings.secret_env))
            case StopModel():
                self.supervisor.stop(command.model, command.cause)
            case RunJob():
                self._run(command)
            case EndJob():
                ticket = self._tickets[command.job_id]
                ended = self._close(ticket, command.outcome)
                ticket.decide(self._dropped(command, ticket.job.key, waited_s=ended.waited_s))
            case AbortJob():
                if command.job_id in self._tickets:
                    self._tickets[command.job_id].cut(command.outcome)
            case TellPriority():
                self._tell_priority(command)
            case RecordDispatch():
                self.metrics.dispatched(command.dispatch)
            case _:
                assert_never(command)

    def _tell_priority(self, command: TellPriority) -> None:
        ticket = self._tickets[command.job_id]
        ticket.job = replace(ticket.job, priority=command.priority)
        ticket.band = self.dispatcher.rules.band_of(command.priority).name
        ticket.priority_reason = command.reason
        if command.cause is PriorityCause.OVER_BUDGET:
            self.metrics.priority_adjusted(command.cause)
        self.job_changed(ticket)

    def _dropped(self, command: EndJob, key: str, *, waited_s: float) -> Dropped:
        """How a job that came with the key of this name was ended, as much of it as that key's holder may read."""
        private = command.private if self.settings.is_operator(key) else ""
        return Dropped(
            outcome=command.outcome,
            waited_s=waited_s,
            detail=command.detail + private,
            retry_after_s=command.retry_after_s,
        )

    def _run(self, command: RunJob) -> None:
        ticket = self._tickets[command.job_id]
        grant = self.dispatcher.grant(command.job_id)
        if grant is not None:  # a reload may have moved the model to another lane
            ticket.lane = grant.lane
        ticket.sent_at = time.monotonic()
        waited_s = ticket.sent_at - ticket.job.submitted_at
        self.metrics.job_sent(ticket.lane, ticket.band, waited_s)
        ticket.decide(Run(proxy=self.proxy_of(command.model), waited_s=waited_s))
        self.job_changed(ticket)

    def _close(self, ticket: Ticket, outcome: Outcome) -> Ended:
        """Record the one end of a job."""
        job = ticket.job
        del self._tickets[job.id]
        now = time.monotonic()
        sent_at = ticket.sent_at
        ended = Ended(
            job=job,
            band=ticket.band,
            outcome=outcome,
            waited_s=(now if sent_at is None else sent_at) - job.submitted_at,
            run_s=None if sent_at is None else now - sent_at,
        )
        self.recent[job.id] = ended
        if len(self.recent) > ENDED_REMEMBERED:
            self.recent.popitem(last=False)
        self.metrics.job_ended(
            lane=ticket.lane,
            band=ticket.band,
            model=job.model,
            member=job.member,
            outcome=outcome,
            run_s=ended.run_s,
            slots=ticket.slots,
        )
        self.job_changed(ticket, outcome)
        log.info(
            "job ended",
            job=job.id,
            model=job.model,
            band=ticket.band,
            outcome=str(outcome),
            waited_s=round(ended.waited_s, 3),
            run_s=None if ended.run_s is None else round(ended.run_s, 3),
        )
        return ended

    def _set_wake(self) -> None:
        at = self.dispatcher.wakes_at
        if self._wake is not None:
            if self._wake[0] == at:
                return
            self._wake[1].cancel()
            self._wake = None
        if at is not None:
            delay_s = max(at - time.monotonic(), 0.0)
            self._wake = (at, asyncio.get_running_loop().call_later(delay_s, self._wake_up))

    def _wake_up(self) -> None:
        self._wake = None
        self.post(TimePassed())


def _launch_spec(model: ModelSettings, presence: int | None, secrets: frozenset[str]) -> LaunchSpec:
    return LaunchSpec(
        model=model.id,
        argv=model.argv,
        env=model.env,
        proxy=model.proxy,
        check_endpoint=model.check_endpoint,
        health_timeout_s=model.health_timeout_s,
        stop_argv=model.stop_argv,
        unload_timeout_s=model.unload_timeout_s,
        presence=presence,
        secrets=secrets,
    )
