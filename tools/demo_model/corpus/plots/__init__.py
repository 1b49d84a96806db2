"""The plots. Each takes a fresh `Story` and tells it; plots with more variants come up more often."""

from __future__ import annotations

from .craft import baking, garden, painting, repair
from .days import first_day, first_sea, snow_day, stage_fright, star_night
from .deeds import gift, kindness_returns, practice, sick_friend
from .heart import honesty, new_friend, rescue, sharing
from .lost import lost_thing, stray_sheep, treasure
from .trade import market, race, storm, trade_chain
from .ways import RIDDLES, journey, night_noise, riddle_gate
from .wonders import lonely_giant, together, wishes

# the order is part of the corpus: a document picks its plot by position
PLOTS = [lost_thing, lost_thing, treasure, night_noise, stray_sheep, journey, riddle_gate]
PLOTS += [new_friend, honesty, sharing, rescue, rescue, practice, practice, gift, kindness_returns]
PLOTS += [garden, baking, repair, market, market, trade_chain, race, storm, wishes]
PLOTS += [sick_friend, stage_fright, snow_day, star_night, first_sea, painting]
PLOTS += [lonely_giant, lonely_giant, together, first_day]

__all__ = ["PLOTS", "RIDDLES"]
