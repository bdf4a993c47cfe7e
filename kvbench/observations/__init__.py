"""What prompts show before anything is compressed: one prefill a sample, no answer.

The papers' figures about keys (ECOKV 1, 2, 4 to 8) and about where the last queries look (BACON 2, 3) are
means of these quantities. ``kvbench observe`` measures and stores them, ``kvbench figures`` draws them, and
the claims judge some of them. What measuring and drawing share stands here: drawing needs no torch.
"""

FOLDER = "observations"  # of a store
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of a layer's cosines
LAST, BUDGET = 32, 64  # recent positions, and the entries per KV head among which they compete
