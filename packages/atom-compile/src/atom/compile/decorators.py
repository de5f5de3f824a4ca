"""`@support_torch_compile`: makes a model class compile itself at the level its config asks for."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch.nn as nn

from atom.compile.dynamic_dims import infer_dynamic_arg_dims, normalize_dynamic_arg_dims
from atom.compile.errors import CompileSettingError
from atom.compile.monitor import start_monitoring_torch_compile
from atom.compile.wrapper import TorchCompileWrapperWithCustomDispatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from atom.config import Config

__all__ = [
    "TorchCompileWrapperWithCustomDispatcher",
    "start_monitoring_torch_compile",
    "support_torch_compile",
]

ModelClass = TypeVar("ModelClass", bound=type[nn.Module])


@overload
def support_torch_compile(cls: ModelClass, /) -> ModelClass: ...
@overload
def support_torch_compile(
    *, dynamic_arg_dims: Mapping[str, int | Sequence[int]] | None = None
) -> Callable[[ModelClass], ModelClass]: ...
def support_torch_compile(
    cls: ModelClass | None = None,
    /,
    *,
    dynamic_arg_dims: Mapping[str, int | Sequence[int]] | None = None,
) -> ModelClass | Callable[[ModelClass], ModelClass]:
    """Make a model class compile its forward as `compilation_config.level` says.

    The class gains `TorchCompileWrapperWithCustomDispatcher` as a base; its `__init__` must take
    `atom_config`, and may take `prefix` (the name its cache folder gets). At levels 0 and 1 a call is
    `self.forward(...)` and nothing else; from level 2 on the first call traces and compiles.

    Args:
        dynamic_arg_dims: forward argument -> its dynamic dimension or dimensions. Left out: dimension 0 of
            every argument annotated as a tensor.

    Raises:
        DynamicDimsError: no tensor argument is annotated, or a name is not an argument of the forward.
        CompileSettingError: the decorated class is not a module whose `__init__` takes `atom_config`.
    """

    def decorate(model_class: ModelClass) -> ModelClass:
        _check_class(model_class)
        forward = model_class.forward
        dims = (
            infer_dynamic_arg_dims(forward)
            if dynamic_arg_dims is None
            else normalize_dynamic_arg_dims(forward, dynamic_arg_dims)
        )
        return _augment(model_class, dims)

    return decorate if cls is None else decorate(cls)


def _check_class(model_class: type[Any]) -> None:
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise CompileSettingError(f"support_torch_compile decorates nn.Module classes, not {model_class!r}")
    parameters = inspect.signature(model_class.__init__).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    takes_any = takes_any and model_class.__init__ is not nn.Module.__init__
    if "atom_config" not in parameters and not takes_any:
        raise CompileSettingError(
            f"{model_class.__qualname__}.__init__ takes no 'atom_config'; support_torch_compile reads the "
            "compilation level from it"
        )


def _augment(model_class: ModelClass, dims: Mapping[str, tuple[int, ...]]) -> ModelClass:
    if not issubclass(model_class, TorchCompileWrapperWithCustomDispatcher):
        model_class.__bases__ = (*model_class.__bases__, TorchCompileWrapperWithCustomDispatcher)
    wrapped_init = model_class.__init__
    signature = inspect.signature(wrapped_init)

    @functools.wraps(wrapped_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        atom_config, prefix = _config_and_prefix(model_class, signature, self, args, kwargs)
        if "prefix" not in signature.parameters and not _takes_any_keyword(signature):
            kwargs.pop("prefix", None)
        wrapped_init(self, *args, **kwargs)
        # A subclass that is decorated as well sets up last: its forward and its dimensions count.
        self._setup_compile(atom_config, prefix, dims)

    model_class.__init__ = __init__  # type: ignore[method-assign]
    if model_class.__call__ is nn.Module.__call__:
        model_class.__call__ = _call  # type: ignore[method-assign]
    return model_class


def _takes_any_keyword(signature: inspect.Signature) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())


def _config_and_prefix(
    model_class: type[Any],
    signature: inspect.Signature,
    instance: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Config, str]:
    named = signature.bind_partial(instance, *args).arguments | kwargs
    if "atom_config" not in named:
        raise CompileSettingError(f"{model_class.__qualname__}() needs atom_config=")
    return named["atom_config"], named.get("prefix", "")


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.do_not_compile:
        return self.forward(*args, **kwargs)
    return self._call_compiled(*args, **kwargs)
