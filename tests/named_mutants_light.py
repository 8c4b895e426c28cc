"""Wrong changes to LightDXML and its re-ranker that tests must catch: tuples as in named_mutants_neighbours."""

from __future__ import annotations

LIGHT, MODEL = "zipfel/models/lightdxml.py", "zipfel/models/lightdxml_model.py"
BETA, SETTINGS = "zipfel/models/lightdxml_beta.py", "zipfel/models/lightdxml_settings.py"
RERANKER, TOKENS = "zipfel/models/reranker.py", "zipfel/models/tokens.py"
LOSSES, NEGATIVES = "zipfel/nn/losses.py", "zipfel/negatives.py"
STEP, TESTS = ("tests/models/test_lightdxml_step.py",), ("tests/models/test_lightdxml.py",)
RERANKED = ("tests/models/test_reranker.py",)

MUTANTS: list[tuple[str, str, str, str, str, tuple[str, ...]]] = [
    (
        "lightdxml", "centroids not averaged", LIGHT,
        "weights = shares.repeat_interleave(owned.offsets.diff())",
        "weights = torch.ones(len(owned.ids), device=vectors.device)",
        STEP,
    ),
    (
        "lightdxml", "label encoder frozen", LIGHT,
        "mapped = self.label_encoder(centroids[labels])",
        "mapped = self.label_encoder(centroids[labels]).detach().requires_grad_()",
        STEP,
    ),
    (
        "lightdxml", "label encoder never trained", LIGHT,
        "if self.settings.label_epochs:",
        "if False:",
        STEP,
    ),
    (
        "lightdxml", "centroids indexed as they are", LIGHT,
        "mapped = F.normalize(self.label_encoder(centroids), dim=1)",
        "mapped = F.normalize(centroids, dim=1)",
        STEP,
    ),
    (
        "lightdxml", "ReLU ignored", LIGHT,
        "return F.relu(mapped) if self.relu else mapped",
        "return mapped",
        STEP,
    ),
    (
        "lightdxml", "ReLU always", LIGHT,
        "return F.relu(mapped) if self.relu else mapped",
        "return F.relu(mapped)",
        STEP,
    ),
    (
        "lightdxml", "bias of the inner layer left out", LIGHT,
        "outer.weight @ inner.weight, outer(inner.bias))",
        "outer.weight @ inner.weight, outer.bias)",
        STEP,
    ),
    (
        "lightdxml", "layers in the wrong order", LIGHT,
        "outer.weight @ inner.weight, outer",
        "inner.weight @ outer.weight, outer",
        STEP,
    ),
    (
        "lightdxml", "wrong sign in the log distance", LOSSES,
        "(points[owners] - own).square()",
        "(points[owners] + own).square()",
        STEP,
    ),
    (
        "lightdxml", "distance without log", LOSSES,
        "squares.log1p().sum() / len(points)",
        "squares.sum() / len(points)",
        STEP,
    ),
    (
        "lightdxml", "distance averaged over pairs", LOSSES,
        "squares.log1p().sum() / len(points)",
        "squares.log1p().mean()",
        STEP,
    ),
    (
        "lightdxml", "texts of labels ignored", LIGHT,
        "centroids[torch.from_numpy(text_only).to(centroids.device)] = self.encoded(Z[text_only])",
        "pass",
        STEP,
    ),
    (
        "lightdxml", "texts in place of points", LIGHT,
        "(np.diff(Z.indptr) > 0) & (self.counts[rows].cpu().numpy() == 0)",
        "np.diff(Z.indptr) > 0",
        STEP,
    ),
    (
        "lightdxml", "labels without points lose their vectors", LIGHT,
        "torch.where(has_centroid, mapped, self.label_vectors)",
        "mapped",
        TESTS,
    ),
    (
        "lightdxml", "shortlist ignored", LIGHT,
        "self.model.loss(self.part, rows, self.near[rows], generator)",
        "self.model.loss(self.part, rows, torch.zeros_like(self.near[rows]), generator)",
        STEP,
    ),
    (
        "lightdxml", "shortlists of other points", LIGHT,
        "self.near[rows], generator)",
        "self.near[: len(rows)], generator)",
        STEP,
    ),
    (
        "lightdxml", "shortlist of furthest labels", LIGHT,
        "(search.search(chunk, k).ids",
        "(search.search(-chunk, k).ids",
        STEP,
    ),
    (
        "lightdxml", "shortlist a label too short", LIGHT,
        "search.search(chunk, k).ids",
        "search.search(chunk, max(1, k - 1)).ids",
        STEP,
    ),
    (
        "lightdxml", "own labels not added to the shortlist", LIGHT,
        "candidates = pooled(own, listed, filtered)",
        "candidates = pooled(own, listed, filtered, missed=False)",
        STEP,
    ),
    (
        "lightdxml", "own labels not added to the re-ranker's list", NEGATIVES,
        "None if part.filtered is None else bags(part.filtered, rows).to(device))",
        "None if part.filtered is None else bags(part.filtered, rows).to(device), missed=False)",
        RERANKED,
    ),
    (
        "lightdxml", "own labels not added to the shared lists", LIGHT,
        "pool = torch.unique(torch.cat([own.ids, listed.ids]))",
        "pool = torch.unique(listed.ids)",
        STEP,
    ),
    (
        "lightdxml", "filtered labels are wrong, shared", LIGHT,
        "right, left_out = within(own, pool), None if filtered is None else within(filtered, pool)",
        "right, left_out = within(own, pool), None",
        STEP,
    ),
    (
        "lightdxml", "filtered labels are wrong, own lists", LIGHT,
        "candidates = pooled(own, listed, filtered)",
        "candidates = pooled(own, listed, None)",
        STEP,
    ),
    (
        "lightdxml", "filtered labels are wrong for the re-ranker", NEGATIVES,
        "return pooled(own, listed, None if part.filtered is None else bags(part.filtered, rows).to(device))",
        "return pooled(own, listed, None)",
        RERANKED,
    ),
    (
        "lightdxml", "shared_negatives inverted", LIGHT,
        "if not self.settings.shared_negatives:",
        "if self.settings.shared_negatives:",
        STEP,
    ),
    (
        "lightdxml", "loss kinds swapped", LIGHT,
        'self.device(), self.settings.loss == "decoupled"',
        'self.device(), self.settings.loss != "decoupled"',
        STEP,
    ),
    (
        "lightdxml", "decoupled loss logged as logistic", LIGHT,
        "return {self.model.settings.loss: self.model.loss(",
        'return {"logistic": self.model.loss(',
        STEP,
    ),
    (
        "lightdxml", "no dropout", LIGHT,
        "encode(self.tokens(points), self.dropout, generator, share)",
        "encode(self.tokens(points), 0.0, generator, share)",
        STEP,
    ),
    (
        "lightdxml", "residual layer skipped in training", LIGHT,
        "encode = dropped if self.block is None else self.block",
        "encode = dropped",
        STEP,
    ),
    (
        "lightdxml", "residual layer skipped in prediction", LIGHT,
        "return PredictionEncoder(self.tokens, self.block, self.unit)",
        "return PredictionEncoder(self.tokens, None, self.unit)",
        STEP,
    ),
    (
        "lightdxml", "points of any length with cosines", LIGHT,
        "return F.normalize(vectors, dim=1) if self.unit else vectors",
        "return vectors",
        STEP,
    ),
    (
        "lightdxml", "cosine setting ignored", LIGHT,
        "self.unit, self.dropout = settings.cosine, settings.dropout",
        "self.unit, self.dropout = True, settings.dropout",
        STEP,
    ),
    (
        "lightdxml", "cycle never happens", LIGHT,
        "patience=settings.patience, turn_every=cycle,",
        "patience=settings.patience, turn_every=1000,",
        STEP,
    ),
    (
        "lightdxml", "cycle after every epoch", LIGHT,
        "cycle = settings.cycle_epochs or max(1, epochs // 4)",
        "cycle = 1",
        STEP,
    ),
    (
        "lightdxml", "cycle resets the optimizer", "zipfel/training/trainer.py",
        "            self.turn(epoch + 1, False)\n",
        "            self.turn(epoch + 1, False)\n            self.optimizer = type(self.optimizer)("
        "self.module, self.schedule.learning_rate)\n",
        ("tests/training/test_trainer_turn.py",),
    ),
    (
        "lightdxml", "shortlists of the first cycle for ever", LIGHT,
        "        if done < self.schedule.epochs:\n",
        "        if done < self.schedule.epochs and self.near is None:\n",
        TESTS,
    ),
    (
        "lightdxml", "a cycle that is cut short leaves labels behind", LIGHT,
        "if kept % schedule.turn_every and not outcome.interrupted:",
        "if False:",
        TESTS,
    ),
    (
        "lightdxml", "a resumed cycle forgets its shortlists", LIGHT,
        'self.near = None if kept is None else kept[0]["near"]',
        "self.near = model.shortlists(model.encoded(self.part.X), 5)",
        TESTS,
    ),
    (
        "lightdxml", "training uses whole shortlists", LIGHT,
        "k = model.settings.trained_width(",
        "k = model.settings.width(",
        TESTS,
    ),
    (
        "lightdxml", "β swapped", LIGHT,
        "return candidate_scores(self.beta * classifier + (1 - self.beta) * shortlist)",
        "return candidate_scores(self.beta * shortlist + (1 - self.beta) * classifier)",
        STEP,
    ),
    (
        "lightdxml", "β ignored", LIGHT,
        "return candidate_scores(self.beta * classifier + (1 - self.beta) * shortlist)",
        "return candidate_scores(0.5 * classifier + 0.5 * shortlist)",
        STEP,
    ),
    (
        "lightdxml", "β swapped in explanations", LIGHT,
        "torch.logit(self.beta * classifier + (1 - self.beta) * shortlist)",
        "torch.logit(self.beta * shortlist + (1 - self.beta) * classifier)",
        ("tests/test_explain.py",),
    ),
    (
        "lightdxml", "β swapped for labels known by their texts", MODEL,
        "scores = self.beta * classifier + (1 - self.beta) * shortlist",
        "scores = self.beta * shortlist + (1 - self.beta) * classifier",
        STEP,
    ),
    (
        "lightdxml", "texts of new labels not mapped", MODEL,
        "mapped = F.normalize(self.label_encoder(own), dim=1)",
        "mapped = F.normalize(own, dim=1)",
        STEP,
    ),
    (
        "lightdxml", "cosines of points of any length", LIGHT,
        "self.products(F.normalize(queries, dim=1), self.vectors, labels)",
        "self.products(queries, self.vectors, labels)",
        STEP,
    ),
    (
        "lightdxml", "scale of scores forgotten in prediction", LIGHT,
        "logits = self.scale * self.products(queries, self.W, labels) + offset",
        "logits = self.products(queries, self.W, labels) + offset",
        STEP,
    ),
    (
        "lightdxml", "shortlist alone in prediction", LIGHT,
        "return torch.sigmoid(logits.double()), torch.sigmoid(cosines.double())",
        "return torch.sigmoid(cosines.double()), torch.sigmoid(cosines.double())",
        STEP,
    ),
    (
        "lightdxml", "β by rare labels alone", BETA,
        "beta for beta in figures if total(beta, \"P\") >= best - TOLERANCE",
        "beta for beta in figures",
        TESTS,
    ),
    (
        "lightdxml", "β given is chosen all the same", LIGHT,
        "if lesson.validation and settings.beta is None:",
        "if lesson.validation:",
        TESTS,
    ),
    (
        "lightdxml", "offset of the decoupled loss not set", LIGHT,
        "self.classifier.offset.detach().fill_(offset)",
        "pass",
        TESTS,
    ),
    (
        "lightdxml", "preset paper with cosines", SETTINGS,
        'token_init="fasttext", relu=True, cosine=False,',
        'token_init="fasttext", relu=True,',
        TESTS,
    ),
    (
        "lightdxml", "preset paper with our dropout", SETTINGS,
        "residual=False, dropout=0.0, batch_size=255,",
        "residual=False, batch_size=255,",
        TESTS,
    ),
    (
        "lightdxml", "no note about random token vectors", TOKENS,
        'run.note("token vectors start at random: token_init=fasttext learns from texts, and these points have none")',
        "pass",
        TESTS,
    ),
    (
        "lightdxml", "FastText never learned", TOKENS,
        "if token_init == \"fasttext\" and (lesson.terms is None or lesson.train.texts is None):",
        "if token_init == \"fasttext\":",
        TESTS,
    ),
    (
        "lightdxml", "re-ranker learns from last labels", RERANKER,
        "predictor.rank(part.X, k, part.filtered).ids.astype(np.int32)",
        "predictor.rank(part.X, part.Y.shape[1], part.filtered).ids[:, -k:].astype(np.int32)",
        RERANKED,
    ),
    (
        "lightdxml", "re-ranker alone", RERANKER,
        "both = (main.scores[:, : self.k] + np.concatenate(scores)) / 2",
        "both = np.concatenate(scores)",
        RERANKED,
    ),
    (
        "lightdxml", "re-ranker ignored", RERANKER,
        "both = (main.scores[:, : self.k] + np.concatenate(scores)) / 2",
        "both = main.scores[:, : self.k].astype(np.float64)",
        RERANKED,
    ),
    (
        "lightdxml", "re-ranker not saved", MODEL,
        'return more if self.reranker is None else more | with_prefix("reranker.", self.reranker.more_tensors())',
        "return more",
        RERANKED,
    ),
    (
        "lightdxml", "a re-ranker that has not learned ranks", MODEL,
        "self.reranker = reranker if more.epochs else self.reranker",
        "self.reranker = reranker",
        RERANKED,
    ),
]  # fmt: skip
