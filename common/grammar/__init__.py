"""The language an answer must be in: what it is, whether it can be enforced, and which token may come next.

The parsing is llguidance's. Nothing here needs torch.
"""

from common.grammar.compiler import GrammarCompiler
from common.grammar.faults import Fault, find_fault
from common.grammar.language import Language
from common.grammar.state import GrammarState

__all__ = ["Fault", "GrammarCompiler", "GrammarState", "Language", "find_fault"]
