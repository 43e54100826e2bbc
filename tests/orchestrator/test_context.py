import json
from datetime import UTC, datetime, timedelta
from itertools import count

from orchestrator.context import BASE_INSTRUCTIONS, assemble
from orchestrator.models import model
from orchestrator.records import (
    POSITIONS_PER_ANSWER,
    Agent,
    AssistantMessage,
    CommandExecution,
    Effort,
    Ended,
    Environment,
    Exited,
    FunctionCall,
    ImageUrl,
    Item,
    ItemState,
    Reasoning,
    ReasoningSummary,
    Review,
    Session,
    SessionState,
    Text,
    UserMessage,
)
from orchestrator.tools.shell import parse_call

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_numbers = count()


def item(content, turn="turn_1", answer=0) -> Item:
    position = answer * POSITIONS_PER_ANSWER
    number = next(_numbers)
    return Item(f"item_{number}", "sess_1", turn, ItemState.COMPLETED, NOW, content, position)


def command(call_id="call_1", **fields) -> CommandExecution:
    return CommandExecution(call_id, "ls", timedelta(seconds=1), 100, **fields)


def session() -> Session:
    environment = Environment("env_1", "sess_1", "default")
    return Session(
        "sess_1", "default", SessionState.IDLE, Agent(), environment, Review.NONE, {}, NOW, NOW
    )


def assembled(*items: Item, agent: Agent | None = None, data_map: str = "") -> model.ModelRequest:
    return assemble(session(), agent or Agent(), data_map, items)


def test_instructions_come_in_order():
    request = assembled(agent=Agent(instructions="Be brief."), data_map="- /workspace/a.csv")
    assert request.instructions.startswith(BASE_INSTRUCTIONS)
    assert request.instructions.index("Be brief.") < request.instructions.index("a.csv")


def test_without_files_nothing_is_said_of_files():
    assert assembled().instructions == BASE_INSTRUCTIONS


def test_the_commands_of_one_call_become_one_call_and_one_result():
    arguments = json.dumps({"commands": [{"command": "ls"}, {"command": "ls"}]})
    first = command(arguments=arguments, outcome=Exited(0), stdout="a")
    second = command(outcome=Exited(2), stderr="b")
    request = assembled(
        item(UserMessage((Text("go"), ImageUrl("https://example.org/a.png")))),
        item(first, answer=1),
        item(second, answer=1),
        item(AssistantMessage("done"), answer=2),
    )
    user, call, output, answer = request.items
    assert user == model.Message(
        "user", (model.Text("go"), model.ImageUrl("https://example.org/a.png"))
    )
    assert call == model.FunctionCall("call_1", "shell", arguments)
    assert isinstance(output, model.FunctionCallOutput)
    assert output.text.startswith("Command 1 of 2: exit code 0")
    assert "Command 2 of 2: exit code 2" in output.text
    assert answer == model.Message.of("assistant", "done")
    assert parse_call(call.arguments).commands[0].script == "ls"


def kinds_and_calls(request: model.ModelRequest) -> list[tuple[str, str]]:
    return [
        (type(entry).__name__, entry.call_id)
        for entry in request.items
        if isinstance(entry, model.FunctionCall | model.FunctionCallOutput)
    ]


def test_the_calls_of_one_answer_come_before_their_results():
    request = assembled(
        item(command("call_1", outcome=Exited(0)), answer=1),
        item(FunctionCall("call_2", "fly", "{}", "there is no tool `fly`"), answer=1),
        item(command("call_3", outcome=Exited(0)), answer=1),
    )
    assert kinds_and_calls(request) == [
        *(("FunctionCall", f"call_{number}") for number in (1, 2, 3)),
        *(("FunctionCallOutput", f"call_{number}") for number in (1, 2, 3)),
    ]


def test_the_calls_of_two_answers_each_have_their_result_at_once():
    request = assembled(
        item(command("call_1", outcome=Exited(0)), answer=1),
        item(command("call_2", outcome=Exited(0)), answer=2),
    )
    assert kinds_and_calls(request) == [
        ("FunctionCall", "call_1"),
        ("FunctionCallOutput", "call_1"),
        ("FunctionCall", "call_2"),
        ("FunctionCallOutput", "call_2"),
    ]


def test_the_same_call_id_in_two_turns_is_two_calls():
    request = assembled(
        item(command(outcome=Exited(0)), "turn_1"), item(command(outcome=Exited(0)), "turn_2")
    )
    assert len(request.items) == 4


def test_a_refused_command_is_a_result_with_its_reason():
    request = assembled(item(command(outcome=Ended("refused before it ran: it deletes data"))))
    output = request.items[1]
    assert isinstance(output, model.FunctionCallOutput)
    assert output.text == "refused before it ran: it deletes data"


def test_a_call_that_is_no_command_keeps_its_output():
    request = assembled(item(FunctionCall("call_9", "fly", "{}", "there is no tool `fly`")))
    assert request.items == (
        model.FunctionCall("call_9", "fly", "{}"),
        model.FunctionCallOutput("call_9", "there is no tool `fly`"),
    )


def test_reasoning_goes_back_to_its_model():
    request = assembled(
        item(ReasoningSummary(("why",), "rs_1", "sealed")), item(ReasoningSummary(("only shown",)))
    )
    assert request.items == (model.Reasoning("rs_1", "sealed", ("why",)),)


def test_reasoning_is_asked_for_as_the_agent_says():
    request = assembled(agent=Agent(reasoning=Reasoning(Effort.LOW, summary=True)))
    assert (request.reasoning_effort, request.reasoning_summary) == ("low", "auto")
    assert assembled().reasoning_effort is None
