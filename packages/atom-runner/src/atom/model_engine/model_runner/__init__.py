"""The guide's path to `atom.runner.model_runner`: the same module object."""

import sys

import atom.runner.model_runner
from atom.runner.model_runner import *

sys.modules[__name__] = atom.runner.model_runner
