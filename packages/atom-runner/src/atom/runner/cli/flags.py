"""Flags made from the fields of configuration classes, so that none is written down twice."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from atom.config import Config, Setting, from_settings, settings_of
from atom.runner.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PANELS = {
    "Config": "Scheduling",
    "ModelConfig": "Model",
    "KVCacheConfig": "KV cache",
    "ParallelConfig": "Several processes",
    "SpeculativeConfig": "Speculative decoding",
    "CompilationConfig": "Compilation and graphs",
}
_METAVARS = {
    "Integer": "N",
    "Number": "X",
    "Sizes": "N,N,...",
    "CompileSizes": "N,N,...",
    "TextList": "A,B,...",
    "Level": "LEVEL",
    "Mode": "MODE",
    "Options": "JSON",
    "Device": "DEVICE",
}
_DEFAULTS = {
    "model": "the installed SmolLM2-135M",
    "compilation_config.level": "3 on a GPU, 0 on the CPU",
    "compilation_config.cudagraph_mode": "TR_HYBRID at level 3, NONE below",
    "compilation_config.cudagraph_capture_sizes": "a ladder up to --max-num-seqs; on the CPU 1,2,4,8",
}
"""Where a command line's default is not the field's own."""
_NOT_FLAGS = ("seed",)
"""Sampling settings that only a single request can have; `--seed` seeds the engine."""


@dataclass
class EngineFlags:
    """The engine settings that were given, by `Setting.path`."""

    values: dict[str, Any] = field(default_factory=dict)

    def config(self, model: str) -> Config:
        """The whole configuration for the checkpoint at `model`.

        Raises:
            ConfigError: settings that do not go together.
        """
        return from_settings({**self.values, "model": model})

    @property
    def model(self) -> str | None:
        """The model as it was named, None for the default one."""
        return self.values.get("model")


def takes_flags(*, engine: bool = False, sampling: bool = False) -> Callable[[Callable[..., int]], Any]:
    """Decorate a verb: add a flag for each engine and sampling setting.

    The verb gets the values in its parameters `engine: EngineFlags` and `sampling: SamplingParams`; its other
    parameters stay flags of its own.
    """

    def decorate(verb: Callable[..., int]) -> Any:
        own = _own_parameters(verb)
        settings = {_python_name(s): s for s in _flag_settings()} if engine else {}
        wishes = {f"sampling_{f.name}": f for f in _sampling_fields()} if sampling else {}

        def command(**given: Any) -> int:
            passed = {p.name: given[p.name] for p in own}
            if engine:
                passed["engine"] = EngineFlags(_given_settings(settings, given))
            if sampling:
                passed["sampling"] = _sampling_params(wishes, given)
            return verb(**passed)

        added = [_engine_option(name, setting) for name, setting in settings.items()]
        docs = attribute_docs(SamplingParams)
        added += [_sampling_option(name, wish, docs[wish.name]) for name, wish in wishes.items()]
        parameters = [*own, *sorted(added, key=_panel_order)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__name__, command.__doc__ = verb.__name__, verb.__doc__
        return command

    return decorate


def attribute_docs(cls: type) -> dict[str, str]:
    """The string below each annotated attribute in a class's source, on one line; empty where none is."""
    body = ast.parse(inspect.getsource(sys.modules[cls.__module__])).body
    node = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == cls.__name__)
    docs: dict[str, str] = {}
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            written = isinstance(text, ast.Constant) and isinstance(text.value, str)
            docs[statement.target.id] = " ".join(text.value.split()) if written else ""  # type: ignore[union-attr]
    return docs


def _own_parameters(verb: Callable[..., Any]) -> list[inspect.Parameter]:
    """The verb's flags of its own, with annotations evaluated as `typer` needs them."""
    return [
        parameter.replace(annotation=eval(parameter.annotation, vars(sys.modules[verb.__module__])))
        for parameter in inspect.signature(verb).parameters.values()
        if parameter.name not in ("engine", "sampling")
    ]


@functools.cache
def _flag_settings() -> tuple[Setting, ...]:
    return tuple(setting for setting in settings_of(Config) if setting.flag and not setting.computed)


def _python_name(setting: Setting) -> str:
    return "engine_" + setting.path.replace(".", "_")


def _given_settings(settings: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, setting in settings.items():
        text = given[name]
        if text is not None:
            values[setting.path] = text if setting.is_switch else setting.parse(text)
    return values


def _engine_option(name: str, setting: Setting) -> inspect.Parameter:
    panel = "Model" if setting.path == "model" else _PANELS[setting.owner.__name__]
    kind = type(setting.kind).__name__
    words = getattr(setting.kind, "words", ())
    metavar = "|".join(words) if words else _METAVARS.get(kind, "TEXT")
    default = _DEFAULTS.get(setting.path) or _shown(setting.default)
    option = typer.Option(
        f"{setting.flag}/--no-{setting.flag[2:]}" if setting.is_switch else setting.flag,
        help=f"{setting.help} [default: {default}]",
        metavar=None if setting.is_switch else metavar,
        show_default=False,
        rich_help_panel=panel,
    )
    return _keyword(name, bool | None if setting.is_switch else str | None, option, None)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "empty"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(int(value))
    return str(value) if value else "empty"


def _sampling_fields() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(SamplingParams) if f.name not in _NOT_FLAGS]


def _sampling_option(name: str, wish: dataclasses.Field[Any], help_text: str) -> inspect.Parameter:
    flag = "--" + wish.name.replace("_", "-")
    kind: Any = {"float": float, "int": int, "bool": bool, "Sequence[str]": list[str], "Sequence[int]": str}[
        str(wish.type)
    ]
    if kind is bool:
        flag += f"/--no-{flag[2:]}"
    metavar = {float: "X", int: "N", str: "N,N,...", bool: None}.get(kind, "TEXT")
    repeatable = " Repeatable." if kind == list[str] else ""
    default = "" if wish.default in (MISSING, ()) else f" [default: {_shown(wish.default)}]"
    option = typer.Option(
        flag,
        help=f"{help_text}{repeatable}{default}",
        metavar=metavar,
        show_default=False,
        rich_help_panel="Sampling",
    )
    return _keyword(name, kind | None, option, None)


def _sampling_params(
    wishes: Mapping[str, dataclasses.Field[Any]], given: Mapping[str, Any]
) -> SamplingParams:
    values = {wish.name: given[name] for name, wish in wishes.items() if given[name] not in (None, [])}
    if "stop_token_ids" in values:
        values["stop_token_ids"] = _whole_numbers("--stop-token-ids", values["stop_token_ids"])
    return SamplingParams(**values)


def _whole_numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{flag} = {text!r} is not allowed; allowed: token ids, comma-separated"
        ) from None


def _keyword(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    from typing import Annotated

    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _panel_order(parameter: inspect.Parameter) -> int:
    panels = ["Sampling", "Model", *_PANELS.values()]
    return panels.index(parameter.annotation.__metadata__[0].rich_help_panel)
