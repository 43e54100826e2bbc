"""Owns the loose reading of scripts: every literal command anywhere, with where it would run.

It follows substitutions, control flow, functions, pipes and here-documents into shells, `eval`,
`trap` and the wrappers. It judges nothing beyond what shows in the structure alone.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from tree_sitter import Node

from reviewer.rules.found import Command, Danger, Finding, Loose, shown
from reviewer.rules.hidden import hidden_code
from reviewer.rules.learn import learn
from reviewer.rules.paths import ELSEWHERE, HOME, UNKNOWN, resolve
from reviewer.rules.printed import first_word, output, programs, starts_itself_twice
from reviewer.rules.redirects import Redirects, heredoc_texts, read_redirects
from reviewer.rules.rough import rough_commands
from reviewer.rules.syntax import Syntax, parse_tree, text_of
from reviewer.rules.words import MAX_CHOICES, Fields, Variables, Words
from reviewer.rules.wrappers import Inner, positionals, program, unwrap

MAX_DEPTH = 8
"""Most scripts and wrappers inside each other; deeper ones are a finding."""

MAX_TREE_DEPTH = 100
"""Most levels of the syntax tree that are followed, inner scripts included."""

MAX_COMMANDS = 2_000
"""Most commands that are collected; more are a finding."""

MAX_INNER_SCRIPTS = 32
"""Most scripts within the script that are parsed; more are a finding."""

READ_SECONDS = 1.0
"""Longest time that one reading may take; then it stops, which is a finding."""

_LEAVES = frozenset({"exit", "return", "die", "fail"})
_FORK_BOMB = re.compile(r"(?:^|[;&|{}()])(?:function)?([^\s;&|(){}]{1,64})\(\)[({]\1\|\1&")


@dataclass(frozen=True)
class _Context:
    """What reaches a command from outside its own text."""

    depth: int = 0
    feeds: frozenset[str] = frozenset()
    stdin: tuple[str, ...] = ()


_NOTHING = _Context()
_NO_REDIRECTS = Redirects()


class Collector:
    """Collects commands from scripts and argument lists. Used once; never raises."""

    def __init__(self, cwd: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        cwd = cwd if cwd.startswith("/") and "\0" not in cwd else ELSEWHERE
        self._clock = clock
        self._deadline = clock() + READ_SECONDS
        self._stopped = False
        self._cwds: tuple[str, ...] = (cwd,)
        self._list_cwds: tuple[str, ...] = self._cwds
        self._stops_on_error = False
        self._variables = Variables(cwd)
        self._words = Words(self._variables, self._printed)
        self._printing = 0
        self._scripts = 0
        self._level = 0
        self._commands: dict[Command, None] = {}
        self._findings: dict[Finding, None] = {}

    def result(self) -> Loose:
        return Loose(tuple(self._commands), tuple(self._findings))

    def add_script(self, script: str | Syntax) -> None:
        self._script(script, _NOTHING)

    def add_argv(self, argv: tuple[str, ...]) -> None:
        self._emit(argv, _NOTHING)

    def _find(self, danger: Danger, text: str) -> None:
        self._findings[Finding(danger, shown(text))] = None

    def _stop(self, why: str) -> None:
        """Gives up on the rest; that alone makes the script dangerous."""
        self._stopped = True
        self._find(Danger.TOO_LARGE, why)

    # Scripts

    def _script(self, script: str | Syntax, context: _Context) -> None:
        self._scripts += 1
        if context.depth > MAX_DEPTH:
            self._find(Danger.TOO_DEEP, f"more than {MAX_DEPTH} scripts inside each other")
            return
        if self._scripts > MAX_INNER_SCRIPTS + 1:
            self._stop(f"more than {MAX_INNER_SCRIPTS} scripts in the script")
            return
        if isinstance(script, str):
            script = script.replace(UNKNOWN, "${__unknown__}") if context.depth else script
            syntax = parse_tree(script, clock=self._clock)
        else:
            syntax = script
        if syntax.root is None:
            self._find(Danger.TOO_LARGE, syntax.problem)
            return
        if b"(" in syntax.text and b"&" in syntax.text:
            squeezed = re.sub(rb"[ \t\n]+", b"", syntax.text).decode("utf-8", "replace")
            if _FORK_BOMB.search(squeezed):
                self._find(Danger.FORK_BOMB, "a function that starts itself twice")
        learn(syntax.text, syntax.root, self._variables, self._words)
        self._visit(syntax.root, context)
        if syntax.root.has_error:
            for argv in rough_commands(syntax.text.decode("utf-8", "replace")):
                self._emit(argv, context)

    # Nodes

    def _visit(self, node: Node, context: _Context) -> None:
        if self._stopped:
            return
        if self._level >= MAX_TREE_DEPTH:
            self._find(Danger.TOO_DEEP, "the script is nested too deeply")
            return
        if self._clock() > self._deadline:
            self._stop("it takes too long to be read")
            return
        self._level += 1
        self._enter(node, context)
        self._level -= 1

    def _enter(self, node: Node, context: _Context) -> None:
        match node.type:
            case "command":
                self._command(node, context, _NO_REDIRECTS)
            case "redirected_statement":
                self._redirected(node, context)
            case "pipeline":
                self._pipeline(node.named_children, context)
            case "list":
                self._list(node, context)
            case "function_definition":
                self._function(node, context)
            case "subshell" | "command_substitution" | "process_substitution":
                self._apart(node.children, context)
            case "file_redirect" | "herestring_redirect" | "heredoc_redirect":
                redirects = read_redirects([node], self._words)
                for inner in redirects.inner:
                    self._visit(inner, context)
                self._writer(redirects, context)
            case _:
                for child in node.children:
                    if child.children or child.type == "command":
                        self._visit(child, context)

    def _apart(self, nodes: Iterable[Node], context: _Context) -> None:
        """Visits what runs in a shell of its own, whose current folder is its own too."""
        cwds = self._cwds
        for node in nodes:
            if node.is_named:
                self._visit(node, context)
        self._cwds = cwds

    def _list(self, node: Node, context: _Context) -> None:
        """Visits `a && b || c`. What follows a `cd` by `&&` runs only where it succeeded."""
        parts: list[Node] = []
        current: Node | None = node
        while current is not None and current.type == "list":
            parts += reversed(current.children[1:])
            current = current.children[0] if current.children else None
        if current is not None:
            parts.append(current)
        parts.reverse()
        before = self._cwds
        certain = False
        for index, part in enumerate(parts):
            if self._stopped:
                return
            if not part.is_named:
                continue
            joint = parts[index + 1].type if index + 1 < len(parts) else ""
            start = self._cwds
            self._visit(part, context)
            target = self._cd_target(part, start)
            if target is None:
                continue
            last = parts[index + 2] if index + 2 < len(parts) else None
            leaves = joint == "||" and last is not None and first_word(last) in _LEAVES
            if joint == "&&" or leaves:
                self._cwds = target
                certain = certain or leaves
        self._list_cwds = self._cwds
        if self._cwds != before and not certain and not self._stops_on_error:
            self._cwds = _merged(before, self._cwds)

    def _cd_target(self, node: Node, cwds: tuple[str, ...]) -> tuple[str, ...] | None:
        if node.type != "command" or first_word(node) not in ("cd", "pushd"):
            return None
        targets: tuple[str, ...] = ()
        for argv in self._argvs(node):
            targets = _merged(targets, self._moved(argv, cwds))
        return targets

    def _moved(self, argv: tuple[str, ...], cwds: tuple[str, ...]) -> tuple[str, ...]:
        operands = positionals(argv)
        if not operands:
            return (HOME,) if program(argv) == "cd" else (ELSEWHERE,)
        if operands[0] == "-" or program(argv) == "popd":
            return (ELSEWHERE,)
        return tuple(dict.fromkeys(resolve(operands[0], cwd) for cwd in cwds))

    def _pipeline(self, parts: Sequence[Node], context: _Context) -> None:
        feeds, stdin = context.feeds, context.stdin
        for part in parts:
            if part.type == "comment":
                continue
            self._apart([part], _Context(context.depth, feeds, stdin))
            feeds = feeds | programs(part)
            stdin = tuple(self._literal_output(part))

    def _function(self, node: Node, context: _Context) -> None:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is None or body is None:
            return
        if starts_itself_twice(text_of(name), body):
            self._find(Danger.FORK_BOMB, text_of(node))
        self._apart([body], context)

    # Redirects

    def _redirected(self, node: Node, context: _Context) -> None:
        redirects = read_redirects(node.children, self._words)
        for inner in redirects.inner:
            self._visit(inner, context)
        body = node.child_by_field_name("body")
        fed = replace(context, stdin=tuple(redirects.texts)) if redirects.texts else context
        if body is not None and body.type == "command":
            self._command(body, fed, redirects)
        else:
            # A redirect after `a && b` is the last command's, in the folder it runs in.
            if body is not None:
                self._visit(body, fed)
            after = self._cwds
            self._cwds = self._list_cwds if body is not None and body.type == "list" else after
            self._writer(redirects, context)
            self._cwds = after
        if redirects.followers:
            self._follow(body, redirects, context)

    def _follow(self, body: Node | None, redirects: Redirects, context: _Context) -> None:
        """Visits what stands on the line of a here-document: `cat <<EOF | sh`."""
        feeds = context.feeds | (programs(body) if body is not None else frozenset())
        passes = body is not None and first_word(body) in ("cat", "tee")
        stdin = tuple(redirects.texts) if passes else ()
        for follower in redirects.followers:
            if follower.type == "pipeline":
                piped = replace(context, feeds=feeds, stdin=stdin)
                self._pipeline(follower.named_children, piped)
            else:
                self._visit(follower, context)

    def _writer(self, redirects: Redirects, context: _Context) -> None:
        """Keeps what redirects write where they belong to no simple command."""
        if redirects.words:
            for argv in self._combined([self._words.fields(w) for w in redirects.words]):
                self._emit(argv, context, tuple(redirects.writes))
        elif redirects.writes:
            self._keep(Command((), self._cwds, tuple(redirects.writes)))

    # Commands

    def _command(self, node: Node, context: _Context, outer: Redirects) -> None:
        own = outer
        feeds = context.feeds
        parts = node.children
        if any(part.type.endswith("_redirect") for part in parts):
            own = read_redirects(parts, self._words)
            for inner in own.inner:
                self._visit(inner, context)
        for part in parts:
            if part.children and not part.type.endswith("_redirect"):
                self._visit(part, context)
                if part.type != "command_name":
                    feeds = feeds | programs(part)
        redirects = (own,) if own is outer else (own, outer)
        extra = [word for each in redirects for word in each.words]
        writes = tuple(path for each in redirects for path in each.writes)
        texts = tuple(text for each in redirects for text in each.texts)
        if texts or feeds is not context.feeds:
            context = replace(context, feeds=feeds, stdin=texts or context.stdin)
        for argv in self._argvs(node, extra):
            self._emit(argv, context, writes)

    def _argvs(self, node: Node, more: Sequence[Node] = ()) -> list[tuple[str, ...]]:
        words = [
            self._words.fields(child)
            for child in node.children
            if child.is_named
            and child.type != "variable_assignment"
            and not child.type.endswith("_redirect")
        ]
        return self._combined(words + [self._words.fields(word) for word in more])

    def _combined(self, words: Sequence[Sequence[Fields]]) -> list[tuple[str, ...]]:
        """Returns the alternative argument lists. Where they are too many, some of them."""
        if all(len(choices) == 1 for choices in words):
            return [tuple(text for choices in words for text in choices[0])]
        combinations = islice(product(*words), MAX_CHOICES)
        found = [tuple(text for fields in choice for text in fields) for choice in combinations]
        widest = max((len(choices) for choices in words), default=0)
        for index in range(widest if len(found) == MAX_CHOICES else 0):
            spread = [choices[index % len(choices)] for choices in words if choices]
            found.append(tuple(text for fields in spread for text in fields))
        return list(dict.fromkeys(found))

    def _keep(self, command: Command) -> bool:
        if len(self._commands) >= MAX_COMMANDS:
            self._stop(f"more than {MAX_COMMANDS} commands")
            return False
        self._commands[command] = None
        return True

    def _emit(self, argv: tuple[str, ...], context: _Context, writes: tuple[str, ...] = ()) -> None:
        if context.depth > MAX_DEPTH:
            self._find(Danger.TOO_DEEP, f"more than {MAX_DEPTH} wrappers inside each other")
            return
        if self._stopped or (not argv and not writes):
            return
        if not self._keep(Command(argv, self._cwds, writes)):
            return
        name = program(argv)
        if name in ("cd", "pushd", "popd"):
            moved = self._moved(argv, self._cwds)
            self._cwds = moved if self._stops_on_error else _merged(self._cwds, moved)
        elif name == "set" and any(w[:1] == "-" and ("e" in w or w == "-o") for w in argv[1:]):
            self._stops_on_error = self._stops_on_error or "-o" not in argv or "errexit" in argv
        danger = hidden_code(argv, context.feeds)
        if danger is not None:
            self._find(danger, " ".join(argv))
        for inner in unwrap(argv):
            self._inner(inner, replace(context, depth=context.depth + 1))

    def _inner(self, inner: Inner, context: _Context) -> None:
        for variable, value in inner.assignments:
            self._variables.add(variable, [value])
        if inner.script is not None:
            self._script(inner.script, context)
        elif inner.reads_stdin:
            for text in context.stdin:
                self._script(text, replace(context, stdin=()))
        else:
            argv = inner.argv
            if inner.appends_stdin:
                argv += tuple(word for text in context.stdin for word in text.split()[:1000])
            self._emit(argv, context)

    # What commands print

    def _literal_output(self, node: Node) -> list[str]:
        """Returns what a command prints, where its text says so."""
        if node.type == "redirected_statement":
            body = node.child_by_field_name("body")
            if body is None or first_word(body) != "cat":
                return []
            heredocs = [child for child in node.children if child.type == "heredoc_redirect"]
            return [text for doc in heredocs for text in heredoc_texts(doc, self._words)]
        if node.type != "command" or first_word(node) not in ("echo", "printf", "cat"):
            return []
        return [text for argv in self._argvs(node) if (text := output(argv)) is not None]

    def _printed(self, substitution: Node) -> str:
        """Returns what a command substitution stands for, or `UNKNOWN`."""
        inside = [child for child in substitution.children if child.is_named]
        if len(inside) != 1 or inside[0].type != "command" or self._printing >= 4:
            return UNKNOWN
        self._printing += 1
        try:
            argvs = self._argvs(inside[0])
        finally:
            self._printing -= 1
        argv = argvs[0] if len(argvs) == 1 else ()
        name = program(argv)
        if name == "mktemp":
            operands = positionals(argv, "p")
            named = operands and operands[0].startswith("/")
            return operands[0] if named else UNKNOWN if "-p" in argv else "/tmp/tmp.XXXXXXXXXX"
        if name == "pwd" and len(self._cwds) == 1:
            return self._cwds[0]
        text = output(argv)
        return UNKNOWN if text is None else text.rstrip("\n")


def _merged(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    both = tuple(dict.fromkeys(one + other))
    return both if len(both) <= MAX_CHOICES // 2 else (*both[: MAX_CHOICES // 2], ELSEWHERE)
