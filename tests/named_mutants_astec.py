"""Wrong changes to Astec that tests must catch: (model, name, file, old text, found once, new text, tests)."""

from __future__ import annotations

ASTEC = "zipfel/models/astec.py"
MODEL = "zipfel/models/astec_model.py"
NETWORK = "zipfel/models/astec_network.py"
SETTINGS = "zipfel/models/astec_settings.py"
MIXED = "zipfel/models/lightdxml.py"
BETA = "zipfel/models/lightdxml_beta.py"
GRAPH = "zipfel/labelspace/graph.py"
ENCODERS = "zipfel/nn/encoders.py"
CLASSIFIERS = "zipfel/nn/classifiers.py"
TRAINER = "zipfel/training/trainer.py"
STEP, TESTS = ("tests/models/test_astec_step.py",), ("tests/models/test_astec.py",)

MUTANTS: list[tuple[str, str, str, str, str, tuple[str, ...]]] = [
    (
        "astec", "Module I without smoothing", ASTEC,
        'settings.smoothing != "none"',
        'settings.smoothing == "both"', STEP,
    ),
    ("astec", "Module I always smooths", ASTEC, 'if settings.smoothing != "none":', "if True:", STEP),
    (
        "astec", "Module I with Module IV's dropout", ASTEC,
        "bags(part.X, rows).to(device), generator, settings.module1_dropout)",
        "bags(part.X, rows).to(device), generator)", STEP,
    ),
    ("astec", "surrogate with the decoupled loss", ASTEC, "None, decoupled=False)", "None, decoupled=True)", STEP),
    (
        "astec", "surrogate without biases", ASTEC,
        "settings.cosine, draws, biases=settings.biases)", "settings.cosine, draws)", STEP,
    ),
    (
        "astec", "surrogate on single labels", ASTEC,
        "bags(meta_Y, rows).to(device)", "bags(part.Y[:, :count].tocsr(), rows).to(device)", STEP,
    ),
    (
        "astec", "Module I in a warm fit", ASTEC,
        "if settings.module1_epochs and not warm:", "if settings.module1_epochs:", TESTS,
    ),
    ("astec", "no reset of R", ASTEC, "network.features.block.reset()", "pass", STEP),
    ("astec", "R is reset in a warm fit", ASTEC, "block is not None and not warm:", "block is not None:", TESTS),
    (
        "astec", "frozen tokens learn", ASTEC,
        "None if settings.freeze_tokens else features.tokens",
        "features.tokens", STEP,
    ),
    ("astec", "tokens never learn", ASTEC, "None if settings.freeze_tokens else features.tokens", "None", STEP),
    ("astec", "centroids outside checkpoints", ASTEC, "centroids=network.centroids, ", "", TESTS),
    (
        "astec", "shortlists although all labels count", ASTEC,
        'if done < schedule.epochs and settings.negatives != "all":', "if done < schedule.epochs:", STEP,
    ),
    (
        "astec", "shortlists are never made again", ASTEC,
        "elif not (done and settings.search_is_frozen):",
        "elif not done:", TESTS,
    ),
    ("astec", "frozen search is made again", ASTEC, "elif not (done and settings.search_is_frozen):", "else:", TESTS),
    ("astec", "stale centroids at the end", ASTEC, "lags = kept % every and", "lags = False and", TESTS),
    (
        "astec", "no offset after the decoupled loss", ASTEC,
        "network.set_offset(lesson.validation or lesson.train)",
        "pass", TESTS,
    ),
    ("astec", "β is not chosen", ASTEC, "if lesson.validation and self.settings.beta is None:", "if False:", TESTS),
    (
        "astec", "a given β is ignored", ASTEC,
        "if lesson.validation and self.settings.beta is None:",
        "if lesson.validation:", TESTS,
    ),
    ("astec", "rate halved half-way", ASTEC, "HALVED_AT = 0.7", "HALVED_AT = 0.5", STEP),
    ("astec", "halve_at ignored", TRAINER, "step >= share * steps", "2 * step >= steps", STEP),
    (
        "astec", "Module I at Module IV's rate", ASTEC,
        "settings.module1_epochs, settings.module1_learning_rate)",
        "settings.module1_epochs, settings.learning_rate)", STEP,
    ),
    (
        "astec", "re-ranker at Module IV's rate", ASTEC,
        "settings.reranker_epochs, settings.reranker_learning_rate)",
        "settings.reranker_epochs, settings.learning_rate)", TESTS,
    ),
    ("astec", "only the first learner starts from FastText", ASTEC, "tokens.rows.copy_(first.rows)", "pass", TESTS),
    ("astec", "v without ReLU", NETWORK, "            v = F.relu(v)\n", "            v = v * 1\n", STEP),
    ("astec", "frozen v is dropped", NETWORK, "if self.tokens.training:", "if True:", STEP),
    ("astec", "v is never dropped", NETWORK, "if self.tokens.training:", "if False:", STEP),
    (
        "astec", "search always by x̂", NETWORK,
        'None if settings.search_by == "intermediate" else self.block',
        "self.block", STEP,
    ),
    (
        "astec", "search always by v", NETWORK,
        'None if settings.search_by == "intermediate" else self.block',
        "None", STEP,
    ),
    (
        "astec", "documents that are not of length 1", NETWORK,
        "copy_(F.normalize(self.encoded(documents, encode), dim=1))",
        "copy_(self.encoded(documents, encode))", STEP,
    ),
    ("astec", "Module II never smooths", NETWORK, 'self.settings.smoothing == "both")', "False)", STEP),
    (
        "astec", "Module II smooths with Module I", NETWORK,
        'self.settings.smoothing == "both")',
        'self.settings.smoothing != "none")', STEP,
    ),
    (
        "astec", "labels without points lose their vectors", NETWORK,
        "torch.where(means.any(dim=1, keepdim=True), means, self.vectors)",
        "means", TESTS,
    ),
    ("astec", "γ of the wrong search", NETWORK, "2 * (1 - self.gamma) * cosines", "2 * self.gamma * cosines", STEP),
    (
        "astec", "votes not divided by the largest", NETWORK,
        "(ranking.scores / largest).astype(np.float32)",
        "ranking.scores", STEP,
    ),
    ("astec", "half of both searches", NETWORK, "np.float32(2 * self.gamma)", "np.float32(self.gamma)", STEP),
    ("astec", "documents by squared cosines", NETWORK, "sharpness=1.0", "sharpness=2.0", STEP),
    ("astec", "no random labels", NETWORK, "torch.cat([near.long(), drawn], dim=1)", "near.long()", STEP),
    ("astec", "own where shared is set", NETWORK, 'settings.negatives == "own":', 'settings.negatives != "all":', STEP),
    ("astec", "shared where own is set", NETWORK, 'settings.negatives == "own":', "False:", STEP),
    (
        "astec", "filtered labels count, all labels", NETWORK,
        "x, None, own, filtered, decoupled)",
        "x, None, own, None, decoupled)", STEP,
    ),
    (
        "astec", "filtered labels count, shared", NETWORK,
        "within(own, pool), left_out, decoupled)",
        "within(own, pool), None, decoupled)", STEP,
    ),
    (
        "astec", "right labels left out of the pool", NETWORK,
        "torch.cat([own.ids, list_bags(lists.to(device)).ids])",
        "list_bags(lists.to(device)).ids", STEP,
    ),
    (
        "astec", "logistic where decoupled is set, own", NETWORK,
        "losses.decoupled if decoupled else losses.logistic",
        "losses.logistic", STEP,
    ),
    (
        "astec", "logistic where decoupled is set, all", NETWORK,
        "    if decoupled:\n        return losses.decoupled_all(x, W, right, left_out)\n",
        "", STEP,
    ),
    (
        "astec", "offset without biases", NETWORK,
        "self.encoded(some.X, encode), W) + more)",
        "self.encoded(some.X, encode), W))", TESTS,
    ),
    ("astec", "classifiers without biases", NETWORK, "generator, biases=settings.biases)", "generator)", STEP),
    (
        "astec", "queries of the classifier for the search", NETWORK,
        "self.features.searched() if apart else None",
        "None", STEP,
    ),
    ("astec", "β always 0.75", NETWORK, "0.75 if settings.beta is None else settings.beta", "0.75", STEP),
    (
        "astec", "β not restored", NETWORK,
        'self.beta = float(tensor_of(more, "beta", torch.float64))',
        "pass", TESTS,
    ),
    (
        "astec", "documents' index not restored", NETWORK,
        'self.documents = self._loaded(part_of(more, "documents."), self.centroids.documents)',
        "pass", TESTS,
    ),
    (
        "astec", "known documents are kept twice", MODEL,
        "not_among(part, known) if len(self.documents) else part",
        "part", TESTS,
    ),
    (
        "astec", "new labels without classifiers of the re-ranker", MODEL,
        "self.reranker.classifier.grow(count, generator)",
        "pass", TESTS,
    ),
    (
        "astec", "documents cost nothing", MODEL,
        "settings.learners * settings.dimension if settings.gamma else 0",
        "0", TESTS,
    ),
    (
        "astec", "the re-ranker is not asked", MODEL,
        "main if self.reranker is None else RerankedPredictor(",
        "main if True else RerankedPredictor(", TESTS,
    ),
    (
        "astec", "more clusters than half of the labels", SETTINGS,
        "(labels // 2).bit_length() - 1",
        "labels.bit_length() - 1", TESTS,
    ),
    ("astec", "γ forgotten in searches_apart", SETTINGS, "return self.gamma > 0 or (", "return (", STEP),
    (
        "astec", "shortlist's cosines in place of its scores", MIXED,
        "        if self.searched_apart:\n            cosines = listed\n        elif steady and self.own is None:",
        "        if steady and self.own is None:", STEP,
    ),
    (
        "astec", "one offset for all labels", MIXED,
        "offset = self.offset[labels] if self.offset.ndim else self.offset",
        "offset = self.offset.mean()", STEP,
    ),
    (
        "astec", "β is chosen by the wrong vectors", BETA,
        "learner.index.search(learner.keys(rows, queries), ",
        "learner.index.search(queries, ", TESTS,
    ),
    ("astec", "a walk over counts", GRAPH, "(A.data / sums).astype(np.float32)", "A.data", STEP),
    (
        "astec", "residual layer without v", ENCODERS,
        "return v + dropped(F.relu(F.linear(v, self.spectral(), self.bias)), drop, generator)",
        "return dropped(F.relu(F.linear(v, self.spectral(), self.bias)), drop, generator)", STEP,
    ),
    (
        "astec", "residual layer without its ReLU", ENCODERS,
        "v + dropped(F.relu(F.linear(v, self.spectral(), self.bias)), drop, generator)",
        "v + dropped(F.linear(v, self.spectral(), self.bias), drop, generator)", STEP,
    ),
    (
        "astec", "residual layer without bias in prediction", ENCODERS,
        "return v + F.relu(F.linear(v, self.R, self.bias))",
        "return v + F.relu(F.linear(v, self.R))", TESTS,
    ),
    ("astec", "the residual layer's bias is not reset", ENCODERS, "        nn.init.zeros_(self.bias)\n", "", STEP),
    (
        "astec", "biases are multiplied by 0", CLASSIFIERS,
        "F.pad(F.pad(points, (0, 1), value=1.0), (0, EXTRA - 1))",
        "F.pad(points, (0, EXTRA))", STEP,
    ),
]  # fmt: skip
