import sys

import atom.compile.custom_op
from atom.compile.custom_op import *  # for type checkers

sys.modules[__name__] = atom.compile.custom_op
