"""How long a launch must take at least, by what it uses: `predict` divides the counts of a trace by a GPU's ceilings.

A resource that is busy without a pause for so long bounds the time from below, whatever the kernel does meanwhile. The
largest of these bounds is the prediction. A kernel takes longer if it does not keep its scarcest resource busy, and
shorter only if the compiler saves some of what is written, or adds fewer instructions than is estimated.
"""

from warpstep.prediction.ceilings import RECORDED, Ceilings, of_records, recorded
from warpstep.prediction.model import Prediction, Use, predict

__all__ = ["RECORDED", "Ceilings", "Prediction", "Use", "of_records", "predict", "recorded"]
