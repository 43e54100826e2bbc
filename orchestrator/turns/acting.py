"""Owns carrying out what the model asked for: each command is judged, then run, then recorded."""

import asyncio
from collections import defaultdict
from contextlib import aclosing
from dataclasses import replace

from orchestrator.records import (
    CommandExecution,
    CommandOutputDelta,
    Ended,
    EventKind,
    Exited,
    Item,
    ItemState,
)
from orchestrator.tools.followers import PlannedCommand
from orchestrator.tools.results import CommandResult
from orchestrator.turns.journal import Journal
from orchestrator.turns.ports import Commands, Decision, Reviews


def execution_id(item_id: str) -> str:
    """The execution of a command's item: the same one each time, so that none runs twice."""
    return f"exec_{item_id.partition('_')[2]}"


class Acting:
    """Runs the commands of a turn that have no result yet, all at the same time."""

    def __init__(self, commands: Commands, reviews: Reviews) -> None:
        self._commands = commands
        self._reviews = reviews

    async def act(self, journal: Journal) -> None:
        """Return when every open command has its result recorded.

        Errors: those of the runtime and of the reviewer's client.
        """
        calls: defaultdict[str, list[tuple[Item, CommandExecution]]] = defaultdict(list)
        for item, command in journal.open_commands():
            calls[command.call_id].append((item, command))
        async with asyncio.TaskGroup() as tasks:
            for call in calls.values():
                tasks.create_task(self._carry_out(journal, call))

    async def call_off(self, journal: Journal) -> None:
        """End the commands of a turn that are running, those that the model left included."""
        running = [
            execution_id(item.id)
            for item in journal.own_items()
            if isinstance(item.content, CommandExecution)
            and (item.state is ItemState.IN_PROGRESS or item.content.still_running)
        ]
        if running and journal.container_id:
            await self._commands.cancel(running)

    async def _carry_out(self, journal: Journal, call: list[tuple[Item, CommandExecution]]) -> None:
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(self._reviews.review(journal.session, item, command))
                for item, command in call
            ]
        allowed: dict[str, tuple[Item, CommandExecution]] = {}
        for (item, command), task in zip(call, asked, strict=True):
            decision = task.result()
            command = replace(command, decision_id=decision.id)
            if decision.allowed:
                allowed[item.id] = item, command
            else:
                await _refuse(journal, item, command, decision)
        if allowed:
            await self._run(journal, allowed)

    async def _run(
        self, journal: Journal, allowed: dict[str, tuple[Item, CommandExecution]]
    ) -> None:
        def on_delta(item_id: str, is_stderr: bool, text: str, after_gap: bool) -> None:
            delta = CommandOutputDelta(item_id, is_stderr, text, after_gap)
            journal.say(EventKind.COMMAND_OUTPUT_DELTA, delta)

        planned = [_plan(item, command) for item, command in allowed.values()]
        yield_time = next(command.yield_time for _, command in allowed.values())
        results = self._commands.run(
            journal.container_id, planned, yield_time=yield_time, on_delta=on_delta
        )
        async with aclosing(results):
            async for result in results:
                item, command = allowed[result.item_id]
                await _finish(journal, item, command, result)


def _plan(item: Item, command: CommandExecution) -> PlannedCommand:
    return PlannedCommand(
        item_id=item.id,
        execution_id=execution_id(item.id),
        script=command.command,
        cwd=command.cwd,
        timeout=command.timeout,
        max_output_chars=command.max_output_chars,
        as_root=command.as_root,
    )


async def _refuse(
    journal: Journal, item: Item, command: CommandExecution, decision: Decision
) -> None:
    refused = replace(command, outcome=Ended(f"refused before it ran: {decision.reason}"))
    await _close(journal, replace(item, state=ItemState.FAILED, content=refused))


async def _finish(
    journal: Journal, item: Item, command: CommandExecution, result: CommandResult
) -> None:
    done = replace(
        command,
        execution_id=result.execution_id,
        outcome=result.outcome,
        still_running=result.still_running,
        stdout=result.stdout,
        stderr=result.stderr,
        duration=result.duration,
        output_held=result.output_held,
    )
    succeeded = result.still_running or result.outcome == Exited(0)
    state = ItemState.COMPLETED if succeeded else ItemState.FAILED
    await _close(journal, replace(item, state=state, content=done))


async def _close(journal: Journal, item: Item) -> None:
    await journal.record(changed=[item], drafts=[journal.draft(EventKind.ITEM_DONE, item)])
