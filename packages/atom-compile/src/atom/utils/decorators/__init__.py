import sys

import atom.compile.decorators
from atom.compile.decorators import *  # for type checkers

sys.modules[__name__] = atom.compile.decorators
