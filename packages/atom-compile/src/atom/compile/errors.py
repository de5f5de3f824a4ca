"""Exceptions of atom-compile.

::

    CompileError(RuntimeError)
    ├── TracingError            Dynamo cannot trace the model; names the source line and a level that runs it
    │   └── BufferUpdateError   the forward assigns an nn.Module buffer; names buffer and class
    ├── ShapeError              a dimension declared dynamic became a constant, or a call does not fit
    ├── MissingToolchainError   levels 2 and 3 on a CPU without a C++ compiler
    └── ArtifactError           an artifact cannot be saved or loaded (handled: it becomes a recompile)
    CompileSettingError(ValueError)
    ├── CustomOpError           an op cannot be registered as asked, or is not registered at all
    ├── DynamicDimsError        which arguments are dynamic cannot be told from the forward
    └── SplitError              splitting ops that cannot be used, or an eager region that is not one
"""

from __future__ import annotations

__all__ = [
    "ArtifactError",
    "BufferUpdateError",
    "CompileError",
    "CompileSettingError",
    "CustomOpError",
    "DynamicDimsError",
    "MissingToolchainError",
    "ShapeError",
    "SplitError",
    "TracingError",
]


class CompileError(RuntimeError):
    """A model could not be compiled, or a compiled model could not be called."""


class TracingError(CompileError):
    """Dynamo cannot trace the model. The message names the source line and the level that would run it."""


class BufferUpdateError(TracingError):
    """The forward assigns an `nn.Module` buffer, which a recorded graph would miss silently."""


class ShapeError(CompileError):
    """A dimension declared dynamic became a constant, or a call's shapes do not fit what was compiled."""


class MissingToolchainError(CompileError):
    """Levels 2 and 3 generate C++ on a CPU and found no compiler for it."""


class ArtifactError(CompileError):
    """A compiled artifact cannot be saved or loaded; callers turn it into a recompile."""


class CompileSettingError(ValueError):
    """A setting of atom-compile that cannot be meant."""


class CustomOpError(CompileSettingError):
    """An op cannot be registered as asked, or is not registered."""


class DynamicDimsError(CompileSettingError):
    """The dynamic dimensions cannot be told from the forward's annotations, or name no argument of it."""


class SplitError(CompileSettingError):
    """The graph cannot be split as asked, or an eager region would end up inside a compiled piece."""
