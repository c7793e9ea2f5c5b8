"""Provider against provider: the median time of each at one op and workload, with the ratio to a common yardstick.

Only times measured in the same way (`analysis.methods`) on one device stand in one row, and only rows of one way in one
mean. Printing is left to `analysis.tables`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.methods import METHOD, cache_kind

BASELINE = "torch"
KEY = ("device", "op", "workload", *METHOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTable:
    """Times of providers side by side.

    Attributes:
        times: KEY, then one column a provider: median us, NaN where it did not run.
        baseline: the provider that the ratios are to; '' where there is nothing to compare.
        note: one line that says what is compared, or why nothing is.
    """

    times: pd.DataFrame
    baseline: str
    note: str

    @property
    def providers(self) -> list[str]:
        """The providers, the baseline first."""
        return [str(c) for c in self.times.columns if c not in KEY]

    def ratios(self) -> pd.DataFrame:
        """KEY and, for each provider but the baseline, the baseline's time over its: above 1 it is the faster."""
        others = [p for p in self.providers if p != self.baseline]
        return self.times[list(KEY)].assign(**{p: self.times[self.baseline] / self.times[p] for p in others})


def workload_of(points: pd.DataFrame) -> pd.Series[str]:
    """The part of the case id after op and provider."""
    return points["case_id"].str.split("/", n=2).str[-1]


def latest(points: pd.DataFrame) -> pd.DataFrame:
    """The points that may be compared, with `workload`: valid ones, of a case measured twice that of the later run."""
    usable = points[(points["time_us"] > 0) & (points["class"] != "invalid")]
    return usable.assign(workload=workload_of(usable)).drop_duplicates([*KEY, "provider"], keep="last")


def provider_table(points: pd.DataFrame) -> ProviderTable:
    """One row for each workload that two providers or more ran; of a case measured twice the later run counts.

    Invalid points are left out: their times are known to be wrong.
    """
    last = latest(points)
    names = sorted(last["provider"].unique())
    empty = pd.DataFrame(columns=[*KEY, *names])
    if len(names) < 2:
        only = f"only one provider ({names[0]})" if names else "no valid point"
        return ProviderTable(times=empty, baseline="", note=f"{only}: no provider to compare with")
    wide = last.set_index([*KEY, "provider"])["time_us"].unstack("provider")
    # unstack sorts by text, M=16 before M=2: back to the order in which the workloads came
    wide = wide.reindex(last.set_index(list(KEY)).index.unique()).dropna(thresh=2)
    if wide.empty:
        return ProviderTable(times=empty, baseline="", note=f"{', '.join(names)} share no workload: nothing to compare")
    baseline = BASELINE if BASELINE in wide and wide[BASELINE].notna().any() else str(wide.notna().sum().idxmax())
    others = [p for p in wide.columns if p != baseline]
    times = wide[[baseline, *others]].reset_index().rename_axis(columns=None)
    instead = "" if baseline == BASELINE else f" ({BASELINE} is not among them)"
    note = f"median us; ratio = time of {baseline}{instead} / time of the provider: above 1 the provider is faster"
    return ProviderTable(times=times, baseline=baseline, note=note)


def geomeans(table: ProviderTable) -> pd.DataFrame:
    """Per device, op, provider and METHOD: geometric mean of the ratio over the workloads of both, and their count."""
    by = ["device", "op", *METHOD, "provider", "baseline"]
    columns = [*by, "geomean", "count"]
    if not table.baseline:
        return pd.DataFrame(columns=columns)
    wide = table.ratios().assign(cache=lambda f: cache_kind(f["cache"]))
    long = wide.melt(
        id_vars=["device", "op", *METHOD], value_vars=[c for c in wide if c not in KEY], var_name="provider"
    )
    long = long.dropna(subset="value").assign(log=lambda f: np.log(f["value"]), baseline=table.baseline)
    grouped = long.groupby(by)["log"].agg(["mean", "count"]).reset_index()
    return grouped.assign(geomean=np.exp(grouped["mean"]))[columns]
