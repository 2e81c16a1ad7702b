"""The least time of a launch on a GPU: `predict` divides the counts of a trace by the GPU's ceilings.

Each resource bounds the time from below: it takes at least as long as the resource is busy. The largest bound is the
prediction. A kernel takes longer if it does not keep that resource busy. It takes less time only if the compiler saves
some of what is written, or adds fewer instructions than estimated.
"""

from warpstep.prediction.ceilings import RECORDED, Ceilings, from_records, recorded
from warpstep.prediction.model import Prediction, Use, predict

__all__ = ["RECORDED", "Ceilings", "Prediction", "Use", "from_records", "of_records", "predict", "recorded"]

of_records = from_records  # its name until 0.1
