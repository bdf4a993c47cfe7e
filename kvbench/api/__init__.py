"""kvbench in a notebook: models, answers of many methods to one prompt, and what stores hold.

>>> model = kvbench.load("embedded")
>>> answers = kvbench.generate(model, "What is the total?", images=[page],
...                            methods=["fullkv", "snapkv+bacon(gamma=0.5)"], budgets=[64])
>>> answers["snapkv+bacon(gamma=0.5)", 64].text
"""

from kvbench.api.answers import Answered, Answers
from kvbench.api.generate import generate
from kvbench.api.model import Model, load, wrap
from kvbench.api.stores import compare, results

__all__ = ["Answered", "Answers", "Model", "compare", "generate", "load", "results", "wrap"]
