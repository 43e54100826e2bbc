"""Owns how words on the command line become an agent that is asked for."""

from pathlib import Path

from workroom.errors import InvalidField
from workroom.orchestrator.v1 import agents_pb2 as pb


def agent_of(model: str, instructions: str, script: Path | None) -> pb.Agent:
    """An agent; a script is read from its file. Errors: `InvalidField`."""
    agent = pb.Agent(model=model, instructions=instructions)
    if script is not None:
        try:
            text = script.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidField("script", f"{str(script)!r} cannot be read: {error}") from error
        agent.provider.script.name = script.stem
        agent.provider.script.yaml = text
    return agent
