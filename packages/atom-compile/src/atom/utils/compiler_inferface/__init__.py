import sys

import atom.compile.compiler_interface
from atom.compile.compiler_interface import *  # for type checkers

sys.modules[__name__] = atom.compile.compiler_interface
