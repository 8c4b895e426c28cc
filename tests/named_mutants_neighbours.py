"""Wrong changes to MNN and DXML that tests must catch: (model, name, file, old text, found once, new text, tests)."""

from __future__ import annotations

MNN = "zipfel/models/mnn.py"
DXML = "zipfel/models/dxml.py"
NEIGHBOURS = "zipfel/models/neighbours.py"
LOSSES = "zipfel/nn/losses.py"
ENCODERS = "zipfel/nn/encoders.py"
OPTIM = "zipfel/nn/optim.py"
GRAPH = "zipfel/labelspace/graph.py"
WALKS = "zipfel/labelspace/deepwalk.py"
VECTORS = "zipfel/labelspace/vectors.py"
IVF = "zipfel/index/ivf.py"
LEARNER = "zipfel/models/learner.py"
MNN_STEP, DXML_STEP = ("tests/models/test_mnn_step.py",), ("tests/models/test_dxml_step.py",)
MNN_TESTS = ("tests/models/test_mnn.py",)
INCREMENTAL = ("tests/models/test_dxml_incremental.py",)
VECTORS_TESTS = ("tests/labelspace/test_vectors.py",)
DXML_TESTS = ("tests/models/test_dxml.py",)
WALKS_TESTS = ("tests/labelspace/test_deepwalk.py",)

MUTANTS: list[tuple[str, str, str, str, str, tuple[str, ...]]] = [
    (
        "mnn", "labels dropped like features", MNN,
        "self.label_encoder(own).T",
        "self.label_encoder(own, settings.feature_dropout, generator).T",
        MNN_STEP,
    ),
    (
        "mnn", "dropout dropped", MNN,
        "self.encoder(points, settings.feature_dropout, generator)",
        "self.encoder(points)",
        MNN_STEP,
    ),
    (
        "mnn", "negatives of labels, not of points", MNN,
        "cosines.gather(1, others)",
        "cosines.T.gather(1, others)",
        MNN_STEP,
    ),
    (
        "mnn", "positive sign", LOSSES,
        "(1 - positive).square() / 4 + reduced(",
        "(1 + positive).square() / 4 + reduced(",
        MNN_STEP,
    ),
    (
        "mnn", "quarter missing", LOSSES,
        "(1 - positive).square() / 4 + reduced(",
        "(1 - positive).square() + reduced(",
        MNN_STEP,
    ),
    (
        "mnn", "half for quarter", LOSSES,
        "(1 - positive).square() / 4 + reduced(",
        "(1 - positive).square() / 2 + reduced(",
        MNN_STEP,
    ),
    (
        "mnn", "easiest negative", LOSSES,
        "penalties.amax(dim=1)",
        "penalties.amin(dim=1)",
        MNN_STEP,
    ),
    (
        "mnn", "mean of negatives", LOSSES,
        "penalties.amax(dim=1)",
        "penalties.mean(dim=1)",
        MNN_STEP,
    ),
    (
        "mnn", "sum of negatives", LOSSES,
        "penalties.amax(dim=1)",
        "penalties.sum(dim=1)",
        MNN_STEP,
    ),
    (
        "mnn", "max over batch axis", LOSSES,
        "penalties.amax(dim=1)",
        "penalties.amax(dim=0).amax()",
        MNN_STEP,
    ),
    (
        "mnn", "margin ignored", LOSSES,
        "torch.where(negatives > m, negatives.square(), 0.0)",
        "negatives.square()",
        MNN_STEP,
    ),
    (
        "mnn", "margin < for >", LOSSES,
        "torch.where(negatives > m,",
        "torch.where(negatives < m,",
        MNN_STEP,
    ),
    (
        "mnn", "margin hinge: (c-m)^2", LOSSES,
        "torch.where(negatives > m, negatives.square(), 0.0)",
        "torch.where(negatives > m, (negatives - m).square(), 0.0)",
        MNN_STEP,
    ),
    (
        "mnn", "negative not squared", LOSSES,
        "torch.where(negatives > m, negatives.square(), 0.0)",
        "torch.where(negatives > m, negatives, 0.0)",
        MNN_STEP,
    ),
    (
        "mnn", "hardest detached", LOSSES,
        "/ 4 + reduced(penalties, mask, reduction)).mean()",
        "/ 4 + reduced(penalties, mask, reduction).detach()).mean()",
        MNN_STEP,
    ),
    (
        "mnn", "hardest sign", LOSSES,
        "/ 4 + reduced(penalties, mask, reduction)).mean()",
        "/ 4 - reduced(penalties, mask, reduction)).mean()",
        MNN_STEP,
    ),
    (
        "mnn", "sum for mean", LOSSES,
        "/ 4 + reduced(penalties, mask, reduction)).mean()",
        "/ 4 + reduced(penalties, mask, reduction)).sum()",
        MNN_STEP,
    ),
    (
        "mnn", "average divided by K, not by r", ENCODERS,
        "counts = kept.new_zeros(len(bags)).index_add_(0, owners, kept).clamp_min_(1)",
        "counts = sizes.clamp_min(1).float()",
        MNN_STEP,
    ),
    (
        "mnn", "p and 1 - p swapped", ENCODERS,
        "kept = (draws < 1 - dropout).float()",
        "kept = (draws < dropout).float()",
        MNN_STEP,
    ),
    (
        "mnn", "weights ignored", ENCODERS,
        "return Bags(bags.ids, bags.weights * kept / counts[owners], bags.offsets)",
        "return Bags(bags.ids, kept / counts[owners], bags.offsets)",
        MNN_STEP,
    ),
    (
        "mnn", "average divided by weights", ENCODERS,
        "index_add_(0, owners, kept).clamp_min_(1)",
        "index_add_(0, owners, kept * bags.weights.abs()).clamp_min_(1e-6)",
        MNN_STEP,
    ),
    (
        "mnn", "f not unit", ENCODERS,
        "return F.normalize(self.unscaled(bags, dropout, generator), dim=1)",
        "return self.unscaled(bags, dropout, generator)",
        MNN_STEP,
    ),
    (
        "mnn", "unit along batch", ENCODERS,
        "return F.normalize(self.unscaled(bags, dropout, generator), dim=1)",
        "return F.normalize(self.unscaled(bags, dropout, generator), dim=0)",
        MNN_STEP,
    ),
    (
        "mnn", "l1 unit", ENCODERS,
        "return F.normalize(self.unscaled(bags, dropout, generator), dim=1)",
        "return F.normalize(self.unscaled(bags, dropout, generator), dim=1, p=1)",
        MNN_STEP,
    ),
    (
        "mnn", "one dropout mask fixed", MNN,
        "f_x = self.encoder(points, settings.feature_dropout, generator)",
        "f_x = self.encoder(points, settings.feature_dropout, torch.Generator().manual_seed(0))",
        MNN_STEP,
    ),
    (
        "mnn", "own labels among negatives", MNN,
        "torch.randint(1, count, (count, draws)",
        "torch.randint(0, count, (count, draws)",
        MNN_TESTS,
    ),
    (
        "mnn", "one other point never drawn", MNN,
        "torch.randint(1, count, (count, draws)",
        "torch.randint(1, max(2, count - 1), (count, draws)",
        MNN_TESTS,
    ),
    (
        "mnn", "number of negatives ignored", MNN,
        "draws = settings.negatives or usual_negatives(own)",
        "draws = usual_negatives(own)",
        MNN_STEP,
    ),
    (
        "mnn", "usual h wrong way", MNN,
        "round(60 / max(labels, 1))",
        "round(labels)",
        MNN_STEP,
    ),
    (
        "mnn", "half precision reaches the cosines", MNN,
        "with torch.autocast(device.type, enabled=False):",
        "with torch.autocast(device.type, torch.bfloat16, enabled=torch.is_autocast_enabled(device.type)):",
        MNN_STEP,
    ),
    (
        "mnn", "label encoder frozen", MNN,
        "f_x @ self.label_encoder(own).T",
        "f_x @ self.label_encoder(own).detach().T",
        MNN_STEP,
    ),
    (
        "mnn", "encoder frozen", MNN,
        "cosines = f_x @",
        "cosines = f_x.detach() @",
        MNN_STEP,
    ),
    (
        "mnn", "margin default used", MNN,
        "negatives, settings.margin,",
        "negatives, 0.1,",
        MNN_STEP,
    ),
    (
        "mnn", "learning rate halved", MNN,
        "Schedule(settings.epochs, batch_size, settings.learning_rate)",
        "Schedule(settings.epochs, batch_size, settings.learning_rate / 2)",
        MNN_STEP,
    ),
    (
        "mnn", "one epoch more", MNN,
        "Schedule(settings.epochs, batch",
        "Schedule(settings.epochs + 1, batch",
        MNN_STEP,
    ),
    (
        "mnn", "batch size ignored", MNN,
        "min(settings.batch_size, max(16, len(part) // 10))",
        "max(16, len(part) // 10)",
        MNN_STEP,
    ),
    (
        "mnn", "sgd for adam", MNN,
        "Schedule(settings.epochs, batch_size, settings.learning_rate)",
        "Schedule(settings.epochs, batch_size, settings.learning_rate, optimizer='sgd')",
        MNN_STEP,
    ),
    (
        "mnn", "fixed rate", MNN,
        "Schedule(settings.epochs, batch_size, settings.learning_rate)",
        "Schedule(settings.epochs, batch_size, settings.learning_rate, fixed=True)",
        MNN_STEP,
    ),
    (
        "mnn", "labels decoder not unit", MNN,
        "return F.normalize(self.label_encoder.table.rows.detach(), dim=1)",
        "return self.label_encoder.table.rows.detach()",
        MNN_STEP,
    ),
    (
        "mnn", "decoder ignored", MNN,
        "if self.points_vote:\n            return super().learners()",
        "if True:\n            return super().learners()",
        MNN_STEP,
    ),
    (
        "mnn", "half_cosine falls", LEARNER,
        "return ((1 + cosines) / 2)",
        "return ((1 - cosines) / 2)",
        MNN_STEP,
    ),
    (
        "mnn", "vote: farthest", NEIGHBOURS,
        "kept = largest(cosines.masked_fill(ids < 0, -torch.inf), self.neighbours)",
        "kept = largest((-cosines).masked_fill(ids < 0, -torch.inf), self.neighbours)",
        MNN_STEP,
    ),
    (
        "mnn", "vote: sharpness ignored", NEIGHBOURS,
        "weights = near.pow(self.sharpness) *",
        "weights = near *",
        MNN_STEP,
    ),
    (
        "mnn", "vote: not divided", NEIGHBOURS,
        "return weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-300)",
        "return weights / weights.shape[1]",
        MNN_STEP,
    ),
    (
        "mnn", "vote: negative cosines vote", NEIGHBOURS,
        "* ((ids >= 0) & (cosines > 0))",
        "* (ids >= 0)",
        MNN_STEP,
    ),
    (
        "mnn", "vote: neighbours + 1", NEIGHBOURS,
        "-torch.inf), self.neighbours)",
        "-torch.inf), self.neighbours + 1)",
        MNN_STEP,
    ),
    (
        "mnn", "vote: prior reversed", LEARNER,
        "UNLISTED / 2 * counts / max",
        "UNLISTED / 2 * (counts.max(initial=0) - counts) / max",
        MNN_STEP,
    ),
    (
        "mnn", "points remembered before learning", NEIGHBOURS,
        (
            '        outcome = self.learn(part, run, stage)\n        self.memory = Memory(self.encoded(part),'
            ' part.Y, part.X)'
        ),
        (
            '        self.memory = Memory(self.encoded(part), part.Y, part.X)\n        outcome = self.learn('
            'part, run, stage)'
        ),
        MNN_STEP,
    ),
    (
        "mnn", "second round not restarted", NEIGHBOURS,
        'self.start(run.generator("start"))',
        "pass",
        MNN_STEP,
    ),
    (
        "mnn", "second round on train", NEIGHBOURS,
        "self.learned_part(whole, older), run, f",
        "self.learned_part(part, older), run, f",
        MNN_STEP,
    ),
    (
        "mnn", "worst vote chosen", NEIGHBOURS,
        "best = max(options, key=quality)",
        "best = min(options, key=quality)",
        MNN_STEP,
    ),
    (
        "mnn", "mean of negatives not divided", LOSSES,
        'if reduction != "mean":\n        return total',
        "if True:\n        return total",
        MNN_STEP,
    ),
    (
        "mnn", "sum of negatives divided", LOSSES,
        'if reduction != "mean":\n        return total',
        "if False:\n        return total",
        MNN_STEP,
    ),
    (
        "mnn", "maximum instead of mean and sum", LOSSES,
        'if reduction == "max" and penalties.shape[1]:',
        "if penalties.shape[1]:",
        MNN_STEP,
    ),
    (
        "mnn", "excluded pairs count in the mean", LOSSES,
        "torch.full_like(total, penalties.shape[1]) if mask is None else mask.sum(dim=1)",
        "torch.full_like(total, penalties.shape[1])",
        ("tests/nn/test_losses.py",),
    ),
    (
        "mnn", "reduction of the settings ignored", MNN,
        "reduction=settings.negatives_reduction",
        'reduction="max"',
        MNN_STEP,
    ),
    (
        "mnn", "labels decoder: an empty row is ranked by cosines of 0", MNN,
        "rank_candidates(candidates_of(queries, shortlist), scores, self.counts, k)",
        "rank_candidates(ids, scores, self.counts, k)",
        MNN_STEP,
    ),
    (
        "mnn", "labels decoder: labels not counted", MNN,
        "self.counts + label_counts(part.Y.indices, self.label_count)",
        "self.counts + 0 * label_counts(part.Y.indices, self.label_count)",
        MNN_STEP,
    ),
    (
        "mnn", "labels decoder: only the last fit counted", MNN,
        "self.counts + label_counts(part.Y.indices, self.label_count)",
        "label_counts(part.Y.indices, self.label_count)",
        MNN_TESTS,
    ),
    (
        "mnn", "labels decoder: new labels not counted", MNN,
        "self.counts = F.pad(self.counts, (0, count))",
        "self.counts = F.pad(self.counts, (0, 0))",
        MNN_TESTS,
    ),
    (
        "mnn", "labels decoder: labels that the index misses rank above a candidate", MNN,
        "half_cosine(cosines).clamp_min(UNLISTED)",
        "half_cosine(cosines)",
        MNN_TESTS,
    ),
    (
        "mnn", "labels decoder: index of the settings ignored", MNN,
        "self.index = self.settings.build_index(self.label_vectors(), run.seed)",
        "self.index = ExactIndex(self.label_vectors())",
        MNN_TESTS,
    ),
    (
        "mnn", "labels decoder: saved index not loaded", MNN,
        'load_index(self.settings.index, part_of(more, "index."), self.label_vectors())',
        'load_index("exact", part_of(more, "index."), self.label_vectors())',
        MNN_TESTS,
    ),
    (
        "mnn", "labels decoder: saved index of points searched for labels", MNN,
        "self.index = self.settings.build_index(self.label_vectors(), 0)",
        'self.index = load_index(self.settings.index, part_of(more, "index."), more["points.vectors"])',
        MNN_TESTS,
    ),
    (
        "mnn", "labels decoder: a vote is chosen", MNN,
        "return self.points_vote and super().chooses_vote",
        "return super().chooses_vote",
        MNN_STEP,
    ),
    (
        "mnn", "labels decoder: points remembered", MNN,
        "if self.points_vote:\n            return super()._remember(part, run, stage)",
        "if True:\n            return super()._remember(part, run, stage)",
        MNN_STEP,
    ),
    (
        "mnn", "labels decoder: completed with points", MNN,
        "super().complete(lesson, rehearsed) if self.points_vote else 0.0",
        "super().complete(lesson, rehearsed)",
        MNN_TESTS,
    ),
    (
        "mnn", "labels decoder: f_y for training only", MNN,
        "return tensors if self.points_vote else Tensors(tensors.all, {})",
        "return tensors",
        MNN_TESTS,
    ),
    (
        "mnn", "f_y saved for prediction", MNN,
        '(*NeighbourModel.train_only, "label_encoder.*")',
        "NeighbourModel.train_only",
        MNN_TESTS,
    ),
    (
        "mnn", "vote chosen on the first points", NEIGHBOURS,
        "validation = evenly_spaced(validation, JUDGED)",
        "validation = validation.take(np.arange(min(len(validation), JUDGED)))",
        ("tests/models/test_neighbours.py",),
    ),
    (
        "dxml", "f_y is a sum", DXML,
        "np.asarray(Y @ V.numpy() / counts,",
        "np.asarray(Y @ V.numpy(),",
        DXML_STEP,
    ),
    (
        "dxml", "f_y over sqrt", DXML,
        "Y @ V.numpy() / counts",
        "Y @ V.numpy() / np.sqrt(counts)",
        DXML_STEP,
    ),
    (
        "dxml", "f_y unit", DXML,
        'targets = means_of_labels(part.Y, embedded["V"])',
        'targets = F.normalize(means_of_labels(part.Y, embedded["V"]), dim=1)',
        DXML_STEP,
    ),
    (
        "dxml", "targets shuffled", DXML,
        "targets[rows].to(",
        "targets[rows[::-1].copy()].to(",
        DXML_STEP,
    ),
    (
        "dxml", "whiten ignored (always)", DXML,
        "whitened(V) if settings.whiten else V",
        "whitened(V)",
        DXML_STEP,
    ),
    (
        "dxml", "whiten flipped", DXML,
        "whitened(V) if settings.whiten else V",
        "whitened(V) if not settings.whiten else V",
        DXML_STEP,
    ),
    (
        "dxml", "whiten not centred", DXML,
        "centred = V.astype(np.float64) - V.mean(axis=0)",
        "centred = V.astype(np.float64)",
        DXML_STEP,
    ),
    (
        "dxml", "whiten by variance not sd", DXML,
        "directions[:, used] / np.sqrt(values[used])",
        "directions[:, used] / values[used]",
        DXML_STEP,
    ),
    (
        "dxml", "whiten not rotated back", DXML,
        "/ np.sqrt(values[used])) @ directions[:, used].T",
        "/ np.sqrt(values[used])) @ np.eye(int(used.sum()), len(values))",
        DXML_STEP,
    ),
    (
        "dxml", "whiten not unit", DXML,
        "spread / np.maximum(lengths, 1e-12), dtype",
        "spread, dtype",
        DXML_STEP,
    ),
    (
        "dxml", "smooth l1 mean over dims", LOSSES,
        'F.smooth_l1_loss(a, b, reduction="none").sum(dim=1).mean()',
        'F.smooth_l1_loss(a, b, reduction="none").mean()',
        DXML_STEP,
    ),
    (
        "dxml", "smooth l1 sum over points", LOSSES,
        'reduction="none").sum(dim=1).mean()',
        'reduction="none").sum()',
        DXML_STEP,
    ),
    (
        "dxml", "l2 for smooth l1", LOSSES,
        'F.smooth_l1_loss(a, b, reduction="none")',
        "(0.5 * (a - b).square())",
        DXML_STEP,
    ),
    (
        "dxml", "l1 for smooth l1", LOSSES,
        'F.smooth_l1_loss(a, b, reduction="none")',
        "(a - b).abs()",
        DXML_STEP,
    ),
    (
        "dxml", "smooth l1 with its edge at 0.5", LOSSES,
        'F.smooth_l1_loss(a, b, reduction="none")',
        'F.smooth_l1_loss(a, b, reduction="none", beta=0.5)',
        DXML_STEP,
    ),
    (
        "dxml", "no relu", DXML,
        "hidden = F.relu(hidden) if self.nonlinear else hidden",
        "hidden = hidden",
        DXML_STEP,
    ),
    (
        "dxml", "always relu", DXML,
        "hidden = F.relu(hidden) if self.nonlinear else hidden",
        "hidden = F.relu(hidden)",
        DXML_STEP,
    ),
    (
        "dxml", "relu before bias", DXML,
        (
            'hidden = self.input(points) + self.bias\n        hidden = F.relu(hidden) if self.nonlinear else '
            'hidden'
        ),
        "hidden = (F.relu(self.input(points)) if self.nonlinear else self.input(points)) + self.bias",
        DXML_STEP,
    ),
    (
        "dxml", "no hidden bias", DXML,
        "hidden = self.input(points) + self.bias",
        "hidden = self.input(points) + 0 * self.bias",
        DXML_STEP,
    ),
    (
        "dxml", "no output bias", DXML,
        "steady_linear(hidden, self.output.weight, self.output.bias)",
        "steady_linear(hidden, self.output.weight)",
        DXML_STEP,
    ),
    (
        "dxml", "no l2", DXML,
        "return F.normalize(vectors.float(), dim=1, eps=1e-3)",
        "return vectors.float()",
        DXML_STEP,
    ),
    (
        "dxml", "l2 along batch", DXML,
        "F.normalize(vectors.float(), dim=1, eps=1e-3)",
        "F.normalize(vectors.float(), dim=0, eps=1e-3)",
        DXML_STEP,
    ),
    (
        "dxml", "dropout removed", DXML,
        "if generator is not None and self.dropout:",
        "if False:",
        DXML_STEP,
    ),
    (
        "dxml", "dropout keeps the share", DXML,
        ">= self.dropout",
        "< self.dropout",
        DXML_STEP,
    ),
    (
        "dxml", "dropout in the hidden layer", DXML,
        '        hidden = F.relu(hidden) if self.nonlinear else hidden\n',
        (
            '        hidden = F.relu(hidden) if self.nonlinear else hidden\n        hidden = F.dropout('
            'hidden, self.dropout, self.training)\n'
        ),
        DXML_STEP,
    ),
    (
        "dxml", "dropout per point", DXML,
        "torch.rand(vectors.shape, generator=generator)",
        "torch.rand((len(vectors), 1), generator=generator)",
        DXML_STEP,
    ),
    (
        "dxml", "dropout also in prediction", DXML,
        (
            'def forward(self, points: Bags, generator: torch.Generator | None = None) -> Tensor:\n        '
            '"""Return unit'
        ),
        (
            'def forward(self, points: Bags, generator: torch.Generator | None = torch.Generator()) -> '
            'Tensor:\n        """Return unit'
        ),
        DXML_STEP,
    ),
    (
        "dxml", "feature dropout removed", DXML,
        "rows).to(self.device()), dropout, generator)",
        "rows).to(self.device()), 0.0, generator)",
        DXML_STEP,
    ),
    (
        "dxml", "linear path removed", DXML,
        "output if self.linear_path is None else output + self.linear_path(points)",
        "output",
        DXML_STEP,
    ),
    (
        "dxml", "linear path always", DXML,
        "if settings.linear_path else None",
        "if True else None",
        DXML_STEP,
    ),
    (
        "dxml", "objective without generator", DXML,
        "vectors = self.encoder(points, generator)",
        "vectors = self.encoder(points)",
        DXML_STEP,
    ),
    (
        "dxml", "no weight decay", OPTIM,
        "decay: float = 0.0005",
        "decay: float = 0.0",
        DXML_STEP,
    ),
    (
        "dxml", "decay 0.005", OPTIM,
        "decay: float = 0.0005",
        "decay: float = 0.005",
        DXML_STEP,
    ),
    (
        "dxml", "no momentum", OPTIM,
        "momentum: float = 0.9",
        "momentum: float = 0.0",
        DXML_STEP,
    ),
    (
        "dxml", "row decay sign", OPTIM,
        "add_(rows, alpha=self.decay)",
        "add_(rows, alpha=-self.decay)",
        DXML_STEP,
    ),
    (
        "dxml", "row rate sign", OPTIM,
        "rows.add_(velocity, alpha=-rate)",
        "rows.add_(velocity, alpha=rate)",
        DXML_STEP,
    ),
    (
        "dxml", "row momentum lost", OPTIM,
        "state[0].index_copy_(0, ids, velocity)",
        "pass",
        DXML_STEP,
    ),
    (
        "dxml", "nesterov", OPTIM,
        "momentum=self.momentum, weight_decay",
        "momentum=self.momentum, nesterov=True, weight_decay",
        DXML_STEP,
    ),
    (
        "dxml", "sgd rate not fixed", DXML,
        'fixed=optimizer == "sgd"',
        "fixed=False",
        DXML_STEP,
    ),
    (
        "dxml", "adam always", DXML,
        ', optimizer=optimizer\n',
        ', optimizer="adam"\n',
        DXML_STEP,
    ),
    (
        "dxml", "one epoch more", DXML,
        "settings.epochs, batch_size, settings.learning_rate, fixed",
        "settings.epochs + 1, batch_size, settings.learning_rate, fixed",
        DXML_STEP,
    ),
    (
        "dxml", "weighted edges flipped", DXML,
        "label_graph(Y, settings.weighted_edges)",
        "label_graph(Y, not settings.weighted_edges)",
        DXML_STEP,
    ),
    (
        "dxml", "mutual information below 0 kept", GRAPH,
        "kept = weights > 0",
        "kept = weights > -1e9",
        DXML_TESTS,
    ),
    (
        "dxml", "mutual information without the other label's count", GRAPH,
        "(counts[A.row] * counts[A.col])",
        "counts[A.row]",
        DXML_TESTS,
    ),
    (
        "dxml", "weight of neighbours ignored", VECTORS,
        "own + weight * _unit(",
        "own + _unit(",
        VECTORS_TESTS,
    ),
    (
        "dxml", "neighbours not scaled to length 1", VECTORS,
        "weight * _unit(np.asarray(graph @ own, dtype=np.float32))",
        "weight * np.asarray(graph @ own, dtype=np.float32)",
        VECTORS_TESTS,
    ),
    (
        "dxml", "graph weighs even where vectors have room for all labels", DXML,
        "GRAPH_WEIGHT if Y.shape[1] > width else 0.0",
        "GRAPH_WEIGHT",
        DXML_TESTS,
    ),
    (
        "dxml", "labels not orthogonal where there is room", VECTORS,
        "if len(own) <= dimension:",
        "if len(own) < 0:",
        VECTORS_TESTS,
    ),
    (
        "dxml", "given graph ignored", DXML,
        "if settings.graph is not None:",
        "if settings.graph == 0:",
        DXML_STEP,
    ),
    (
        "dxml", "walk length ignored", DXML,
        "            length=self.walk_length,\n",
        "",
        DXML_STEP,
    ),
    (
        "dxml", "walks and length swapped", DXML,
        "walks=self.walks_per_label,\n            length=self.walk_length,",
        "walks=self.walk_length,\n            length=self.walks_per_label,",
        DXML_STEP,
    ),
    (
        "dxml", "window of the settings ignored", DXML,
        "            window=self.walk_window,\n",
        "",
        DXML_STEP,
    ),
    (
        "dxml", "negatives of the settings ignored", DXML,
        "            negatives=self.walk_negatives,\n",
        "",
        DXML_STEP,
    ),
    (
        "dxml", "passes of the settings ignored", DXML,
        "            epochs=self.walk_passes,\n",
        "",
        DXML_STEP,
    ),
    (
        "dxml", "softmax of the settings ignored", DXML,
        'hierarchical = self.walk_softmax == "hierarchical"',
        "hierarchical = False",
        DXML_STEP,
    ),
    (
        "dxml", "hierarchical softmax ignored", WALKS,
        "hs=int(settings.hierarchical),",
        "hs=0,",
        DXML_STEP,
    ),
    (
        "dxml", "negatives beside hierarchical softmax", WALKS,
        "negative=0 if settings.hierarchical else settings.negatives,",
        "negative=settings.negatives,",
        DXML_STEP,
    ),
    (
        "dxml", "mean for sum", DXML,
        "mean * len(rows) if settings.summed else mean",
        "mean",
        DXML_STEP,
    ),
    (
        "dxml", "sum for mean", DXML,
        "mean * len(rows) if settings.summed else mean",
        "mean * len(rows)",
        DXML_STEP,
    ),
    (
        "dxml", "sum as if the batch were full", DXML,
        "mean * len(rows) if settings.summed else mean",
        "mean * settings.batch_size if settings.summed else mean",
        DXML_STEP,
    ),
    (
        "dxml", "rate times batch", DXML,
        "settings.epochs, batch_size, settings.learning_rate, fixed",
        "settings.epochs, batch_size, settings.learning_rate * batch_size, fixed",
        DXML_STEP,
    ),
    (
        "dxml", "decay times batch", OPTIM,
        "add_(rows, alpha=self.decay)",
        "add_(rows, alpha=128 * self.decay)",
        DXML_STEP,
    ),
    (
        "dxml", "decay of dense weights times batch", OPTIM,
        "weight_decay=self.decay)",
        "weight_decay=128 * self.decay)",
        DXML_STEP,
    ),
    (
        "dxml", "random control seeded by a constant", DXML,
        'random_directions(Y.shape[1], width, run.numbers("labels"))',
        "random_directions(Y.shape[1], width, np.random.default_rng(0))",
        ("tests/models/test_dxml.py",),
    ),
    (
        "dxml", "random control knows the graph", DXML,
        "csr_array((labels, labels)) if self.settings.label_vectors == RANDOM else self.graph_of(Y)",
        "self.graph_of(Y)",
        INCREMENTAL,
    ),
    (
        "dxml", "V redrawn", DXML,
        "if self.earlier is None:",
        "if True:",
        INCREMENTAL,
    ),
    (
        "dxml", "V not saved", DXML,
        '({} if self.V is None else {"labels.V": self.V})',
        "{}",
        INCREMENTAL,
    ),
    (
        "dxml", "V lost on loading", DXML,
        'if "labels.V" in more:',
        "if False:",
        INCREMENTAL,
    ),
    (
        "dxml", "V of an interrupted second round", DXML,
        "if stage == self.name or not outcome.interrupted:",
        "if True:",
        INCREMENTAL,
    ),
    (
        "dxml", "new label gets zeros", VECTORS,
        "new[~alone] *= (length / lengths[~alone])[:, None]",
        "new[~alone] = 0",
        INCREMENTAL,
    ),
    (
        "dxml", "new label not of the usual length", VECTORS,
        "    new[~alone] *= (length / lengths[~alone])[:, None]\n",
        "",
        INCREMENTAL,
    ),
    (
        "dxml", "new isolated label gets zeros", VECTORS,
        "random_directions(int(alone.sum()), V.shape[1], numbers) * length",
        "0",
        INCREMENTAL,
    ),
    (
        "dxml", "new isolated labels of all fits alike", DXML,
        'run.numbers("labels", len(known))',
        'run.numbers("labels")',
        INCREMENTAL,
    ),
    (
        "dxml", "old points learned from again", DXML,
        "part = part.take(np.arange(earlier.points, len(part)))",
        "pass",
        INCREMENTAL,
    ),
    (
        "dxml", "second round of a further fit continues the first", DXML,
        "self.load_state_dict(earlier.weights)",
        "pass",
        INCREMENTAL,
    ),
    (
        "dxml", "graph with diagonal", GRAPH,
        "kept = A.row != A.col",
        "kept = A.row >= 0",
        DXML_STEP,
    ),
    (
        "dxml", "graph upper half", GRAPH,
        "kept = A.row != A.col",
        "kept = A.row < A.col",
        DXML_STEP,
    ),
    (
        "dxml", "graph of points with many labels only", GRAPH,
        'A = cooccurrence(Y).tocoo()\n    kept',
        'A = csr_array(Y.T @ (Y.sum(axis=1)[:, None] * Y > 2)).tocoo()\n    kept',
        DXML_STEP,
    ),
    (
        "dxml", "weights squared", GRAPH,
        "A.data[kept].astype(np.float32) if weighted",
        "(A.data[kept] ** 2).astype(np.float32) if weighted",
        DXML_STEP,
    ),
    (
        "dxml", "walks do not move", WALKS,
        "walks[position] = step(walks[position - 1], numbers",
        "walks[position] = step(walks[0], numbers",
        DXML_STEP,
    ),
    (
        "dxml", "cbow", WALKS,
        "sg=1,",
        "sg=0,",
        DXML_STEP,
    ),
    (
        "dxml", "subsampling", WALKS,
        "sample=0,",
        "sample=1e-3,",
        DXML_STEP,
    ),
    (
        "dxml", "window ignored", WALKS,
        "window=settings.window,",
        "window=1,",
        DXML_STEP,
    ),
    (
        "dxml", "isolated labels at zero", WALKS,
        "dimension, numbers) * length",
        "dimension, numbers) * 0",
        DXML_STEP,
    ),
    (
        "dxml", "vectors by frequency", WALKS,
        "sorted_vocab=0,",
        "sorted_vocab=1,",
        DXML_STEP,
    ),
    (
        "dxml", "uniform ignores weights", WALKS,
        "if graph.nnz == 0 or (graph.data == graph.data[0]).all():",
        "if True:",
        DXML_STEP,
    ),
    (
        "dxml", "nearest cluster by inner product", IVF,
        "(faiss.IndexFlatL2 if of_one_length(vectors) else faiss.IndexFlatIP)",
        "(faiss.IndexFlatIP)",
        DXML_STEP,
    ),
    (
        "dxml", "points in wrong clusters", IVF,
        "        return cls(vectors, torch.from_numpy(means.centroids), assignment, probes)",
        (
            '        return cls(vectors, torch.from_numpy(means.centroids), (assignment + 1) % clusters, '
            'probes)'
        ),
        DXML_STEP,
    ),
    (
        "dxml", "probes ignored", IVF,
        "probes = min(width, len(self)), min(self.probes, len(self.centroids))",
        "probes = min(width, len(self)), len(self.centroids)",
        DXML_STEP,
    ),
    (
        "dxml", "number of clusters ignored", IVF,
        "min(clusters or math.isqrt(points), points // 2)",
        "min(math.isqrt(points), points // 2)",
        DXML_STEP,
    ),
    (
        "dxml", "one k-means round", IVF,
        "niter=ROUNDS",
        "niter=1",
        DXML_STEP,
    ),
    (
        "dxml", "points in clusters of others", IVF,
        "assignment = nearest_centroids(faiss, means.centroids, array)",
        "assignment = nearest_centroids(faiss, means.centroids, array[::-1].copy())",
        DXML_STEP,
    ),
    (
        "dxml", "probes of the settings lost", NEIGHBOURS,
        "self.deterministic, self.clusters, self.probes)",
        "self.deterministic, self.clusters)",
        DXML_STEP,
    ),
    (
        "dxml", "index of the settings ignored", NEIGHBOURS,
        "build_index(self.index, vectors",
        "build_index('exact', vectors",
        DXML_STEP,
    ),
    (
        "dxml", "index over vectors in another order", NEIGHBOURS,
        "self.settings.build_index(self.memory.vectors, run.seed)",
        "self.settings.build_index(self.memory.vectors.flip(0), run.seed)",
        DXML_STEP,
    ),
    (
        "dxml", "votes weighted by cosines in spite of sharpness 0", NEIGHBOURS,
        "weights = near.pow(self.sharpness)",
        "weights = near.pow(max(self.sharpness, 1))",
        DXML_STEP,
    ),
    (
        "dxml", "the first labels of all are twice as long", VECTORS,
        "if known else 1.0", "if known else 2.0",
        VECTORS_TESTS,
    ),
    (
        "dxml", "words of one width too many", WALKS,
        "len(str(max(labels - 1, 0)))", "len(str(max(labels + 1, 0)))",
        WALKS_TESTS,
    ),
    (
        "dxml", "a thread more than the steps are worth", WALKS,
        "1 + steps // 100_000", "2 + steps // 100_000",
        WALKS_TESTS,
    ),
]  # fmt: skip
