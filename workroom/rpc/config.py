"""Owns how a service's settings are read from the environment, once, into one frozen model."""

import dataclasses
import difflib
import re
import types
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import grpc
from pydantic import BaseModel, SecretStr, ValidationError

from workroom.errors import WorkroomError

Model = TypeVar("Model", bound=BaseModel)

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP)(_.*)?)")


class ConfigError(WorkroomError):
    """The environment does not make valid settings; the message names every variable at fault."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "BAD_CONFIG"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True)
class _Field:
    """One setting: where it goes in the model, and as what it is read."""

    path: tuple[str, ...]
    kind: Any

    @property
    def secret(self) -> bool:
        return SecretStr in _alternatives(self.kind)


def from_env(model: type[Model], prefix: str, environ: Mapping[str, str]) -> Model:
    """Reads `model` from the variables whose names begin with `prefix` (`RUNTIME_`).

    A field `grace` is `RUNTIME_GRACE`; a field of a nested model or dataclass has both names:
    `RUNTIME_TLS_KEY`. Durations are written `500ms`, `30s`, `1h30m`; lists with commas; a
    `SecretStr` may instead be the content of the file that `…_FILE` names. An empty variable
    counts as unset. What Kubernetes adds for a Service of the same name is ignored.

    Raises `ConfigError` for any other variable with the prefix (it names the nearest known one),
    and for values that the model refuses. Secrets are in no message.
    """
    fields = {prefix + "_".join(field.path).upper(): field for field in _fields(model)}
    files = {f"{name}_FILE": name for name, field in fields.items() if field.secret}
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name in sorted(key for key in environ if key.startswith(prefix)):
        raw = environ[name]
        if name not in fields and name not in files:
            if not _is_service_link(name, raw):
                problems.append(_unknown(name, prefix, [*fields, *files]))
        elif raw:
            target = files.get(name, name)
            if name in files and environ.get(target):
                problems.append(f"{name}: {target} is set too; one of them is enough")
                continue
            try:
                text = _content(raw) if name in files else raw
                _put(values, fields[target].path, _value(fields[target], text))
            except ValueError as error:
                problems.append(f"{name}: {error}")
    if not problems:
        try:
            return model.model_validate(values)
        except ValidationError as error:
            problems = _refusals(error, prefix)
    raise ConfigError(problems)


def parse_duration(text: str) -> timedelta:
    """Reads `500ms`, `30s`, `5m`, `1h30m` or `7d`. Raises ValueError for anything else."""
    text = text.strip()
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s, 5m, 1h30m or 7d")
    return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta())


def _fields(model: type[Any], above: tuple[str, ...] = ()) -> Iterator[_Field]:
    for name, kind in _annotations(model).items():
        nested = next((each for each in _alternatives(kind) if _is_model(each)), None)
        if nested is None:
            yield _Field((*above, name), kind)
        else:
            yield from _fields(nested, (*above, name))


def _annotations(model: type[Any]) -> dict[str, Any]:
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    hints = get_type_hints(model)
    return {field.name: hints[field.name] for field in dataclasses.fields(model) if field.init}


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)
    )


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _value(field: _Field, text: str) -> Any:
    for kind in _alternatives(field.kind):
        if kind is timedelta:
            return parse_duration(text)
        if get_origin(kind) in (tuple, list, frozenset, set):
            return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _content(path: str) -> str:
    try:
        return Path(path).read_text().rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _unknown(name: str, prefix: str, known: list[str]) -> str:
    endings = [each.removeprefix(prefix) for each in known]
    near = difflib.get_close_matches(name.removeprefix(prefix), endings, n=1, cutoff=0.5)
    listed = ", ".join(sorted(known))
    hint = f"; did you mean {prefix}{near[0]}?" if near else f"; known are {listed}"
    return f"{name}: no such setting{hint}"


def _refusals(error: ValidationError, prefix: str) -> list[str]:
    return [
        f"{prefix}{'_'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
        for item in error.errors(include_input=False, include_url=False, include_context=False)
    ]


def _is_service_link(name: str, value: str) -> bool:
    """Whether a Kubernetes node put the variable there, for a Service of our name."""
    return bool(_SERVICE_LINK.fullmatch(name)) or value.startswith(("tcp://", "udp://"))
