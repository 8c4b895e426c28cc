"""Wrong changes to DECAF that tests must catch: (model, name, file, old text, found once, new text, tests)."""

from __future__ import annotations

DECAF, NETWORK = "zipfel/models/decaf.py", "zipfel/models/decaf_network.py"
MODEL, SETTINGS = "zipfel/models/decaf_model.py", "zipfel/models/decaf_settings.py"
SHORTLISTERS, LEARNER = "zipfel/models/shortlisters.py", "zipfel/models/learner.py"
BEAM, ENCODERS, LOSSES = "zipfel/index/beam.py", "zipfel/nn/encoders.py", "zipfel/nn/losses.py"
NEGATIVES, COMBINATION = "zipfel/negatives.py", "zipfel/nn/classifiers.py"
STEP, TESTS = ("tests/models/test_decaf_step.py",), ("tests/models/test_decaf.py",)
PAPER = ("tests/models/test_decaf_paper.py",)

CHANGES: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    # The six that passed every test together
    (
        "σ(h·x̂) dropped", NETWORK,
        "torch.sigmoid(products) * torch.sigmoid(clusters)",
        "torch.sigmoid(products)",
        STEP,
    ),
    (
        "no reset of R", DECAF,
        "        network.document_block.reset()\n        network.label_block.reset()\n",
        "",
        STEP,
    ),
    (
        "decoupled loss where logistic is set, shortlist", DECAF,
        'losses.decoupled if settings.loss == "decoupled" else losses.logistic',
        "losses.decoupled",
        STEP,
    ),
    (
        "decoupled loss where logistic is set, all labels", DECAF,
        '{"logistic": losses.all_labels(points, W, network.offset, own, filtered)}',
        '{"logistic": losses.decoupled_all(points, W, own, filtered)}',
        STEP,
    ),
    (
        "Module I with Module IV's dropout", DECAF,
        "settings.module1_learning_rate, settings.module1_dropout, TWICE)",
        "settings.module1_learning_rate, settings.dropout, TWICE)",
        STEP,
    ),
    (
        "Module I with refinement", NETWORK,
        "(module == 2 and settings.refinement)",
        "settings.refinement",
        STEP,
    ),
    (
        "Module II on sparse centroids", DECAF,
        "label_sums(network.tokens.eval(), part, self.texts, zeros)",
        "sparse_centroids(part.X, part.Y, self.texts)",
        STEP,
    ),
    # Module I
    (
        "Module I skipped", DECAF,
        "                self.module_1(lesson, run)\n",
        "                pass\n",
        STEP,
    ),
    (
        "Module I in spite of module1=false", DECAF,
        "if self.settings.module1:",
        "if True:",
        STEP,
    ),
    (
        "other learners do not share Module I", DECAF,
        "                mine.load_state_dict(shared.state_dict())",
        "                pass",
        STEP,
    ),
    (
        "u_m of length 1 where it is not set", NETWORK,
        "and settings.unit_cluster_texts:",
        "and True:",
        STEP,
    ),
    (
        "u_m never of length 1", NETWORK,
        "cluster_texts = unit_rows(cluster_texts)",
        "pass",
        STEP,
    ),
    (
        "u_m of one label", NETWORK,
        "cluster_texts = None if texts is None else (members @ texts).tocsr()",
        "cluster_texts = None if texts is None else texts[np.unique(clusters, return_index=True)[1]]",
        STEP,
    ),
    (
        "Module I reads Σ E_L(z) as Module II does", NETWORK,
        "read = cluster_texts if module == 1 else texts if settings.reads_texts else None",
        "read = texts if settings.reads_texts else None",
        STEP,
    ),
    (
        "Module I with a bias", NETWORK,
        "if module == 2 and settings.label_bias else None",
        "if settings.label_bias else None",
        STEP,
    ),
    (
        "Module I's rate halved once", DECAF,
        "settings.module1_dropout, TWICE)",
        "settings.module1_dropout, ONCE)",
        TESTS,
    ),
    (
        "Module I's points dropped with none", DECAF,
        "points = network.encode(bags(part.X, rows).to(device), dropout, generator)",
        "points = network.encode(bags(part.X, rows[share.rows]).to(device), 0.0, generator, share)",
        STEP,
    ),
    (
        "texts of clusters not dropped", DECAF,
        "H = meta(network, dropout, generator)",
        "H = meta(network)",
        STEP,
    ),
    # Module II
    (
        "α̃ and β̃ swapped", NETWORK,
        "self.combination(refined, text)",
        "self.combination(text, refined)",
        STEP,
    ),
    (
        "û¹ a mean, not a sum", NETWORK,
        "index_add_(0, self.clusters, text)",
        "index_add_(0, self.clusters, text) / self.clusters.bincount()[:, None]",
        STEP,
    ),
    (
        "û² starts at random", NETWORK,
        "cluster_texts is not None and starts_at_text:",
        "cluster_texts is not None and False:",
        STEP,
    ),
    (
        "no bias of clusters", NETWORK,
        "torch.cat([H, self.bias[:, None]], dim=1)",
        "torch.cat([H, 0 * self.bias[:, None]], dim=1)",
        STEP,
    ),
    (
        "Module II reads texts in spite of -ẑ²", NETWORK,
        "else texts if settings.reads_texts else None",
        "else texts",
        STEP,
    ),
    (
        "centroids of zeros", DECAF,
        "centroids = label_sums(network.tokens.eval(), part, self.texts, zeros)",
        "centroids = zeros",
        STEP,
    ),
    (
        "clusters of other labels are right", SHORTLISTERS,
        "clusters[Y.indices], ends)",
        "clusters[::-1][Y.indices], ends)",
        STEP,
    ),
    (
        "S is not a copy", SHORTLISTERS,
        "tokens if settings.lite else deepcopy(tokens), deepcopy(document_block)",
        "tokens, document_block",
        STEP,
    ),
    (
        "Module II learns tokens in spite of lite", DECAF,
        "tokens = network.tokens if meta.module == 1 or not settings.lite else None",
        "tokens = network.tokens",
        STEP,
    ),
    (
        "Module II's cosines without scale", NETWORK,
        "H = scale * F.normalize(combined, dim=1)",
        "H = F.normalize(combined, dim=1)",
        STEP,
    ),
    # Module III
    (
        "document block not reset", DECAF,
        "        network.document_block.reset()\n",
        "",
        STEP,
    ),
    (
        "label block not reset", DECAF,
        "        network.label_block.reset()\n",
        "",
        STEP,
    ),
    (
        "α and β reset too", ENCODERS,
        "            nn.init.eye_(self.R)\n",
        "            nn.init.eye_(self.R)\n            self.alpha.zero_()\n",
        STEP,
    ),
    (
        "ẑ² stays random", DECAF,
        "        self.start_refinement(network, np.arange(len(network.refinement.rows)))  # of this rank's labels\n",
        "",
        STEP,
    ),
    (
        "ẑ² = E_L(z)", MODEL,
        "= network.tokens.eval()(texts)",
        "= network.eval().label_texts(texts)",
        STEP,
    ),
    (
        "ẑ² of the text where random is set", MODEL,
        'if self.settings.refinement_init == "text" and',
        "if",
        STEP,
    ),
    (
        "a bias that starts at 1", NETWORK,
        "EmbeddingTable(labels, 1, generator, 0.0, own)",
        "EmbeddingTable(labels, 1, generator, 1.0, own)",
        STEP,
    ),
    # Module IV
    (
        "α_L and β_L swapped", NETWORK,
        ("W = self.scaled(self.combination(text, refined))\n        return W if self.bias is None else torch.cat([W, "
         "self.bias.gather"),
        ("W = self.scaled(self.combination(refined, text))\n        return W if self.bias is None else torch.cat([W, "
         "self.bias.gather"),
        STEP,
    ),
    (
        "no bias of labels", NETWORK,
        "torch.cat([W, self.bias.gather(labels)], dim=1)",
        "torch.cat([W, 0 * self.bias.gather(labels)], dim=1)",
        STEP,
    ),
    (
        "a bias that does not learn", DECAF,
        "bias=network.bias, scale",
        "scale",
        STEP,
    ),
    (
        "bias of other labels", NETWORK,
        "self.bias.gather(labels)",
        "self.bias.gather(None if labels is None else labels.flip(0))",
        STEP,
    ),
    (
        "missed labels always added", DECAF,
        "filtered, settings.add_missed_labels)",
        "filtered, True)",
        STEP,
    ),
    (
        "missed labels never added", DECAF,
        "filtered, settings.add_missed_labels)",
        "filtered, False)",
        STEP,
    ),
    (
        "filtered pairs count, shortlist", DECAF,
        "list_bags(ids), filtered,",
        "list_bags(ids), None,",
        STEP,
    ),
    (
        "filtered pairs count, all labels", DECAF,
        "network.offset, own, filtered)}",
        "network.offset, own)}",
        STEP,
    ),
    (
        "shortlists of other points", DECAF,
        "opened[torch.from_numpy(rows)]",
        "opened[torch.from_numpy(rows[::-1].copy())]",
        STEP,
    ),
    (
        "labels not dropped, shortlist", DECAF,
        "W = network.classifiers(candidates.labels, texts, settings.dropout, generator)",
        "W = network.classifiers(candidates.labels, texts)",
        STEP,
    ),
    (
        "labels not dropped, all labels", DECAF,
        "W = network.classifiers(None, all_texts, settings.dropout, generator)",
        "W = network.classifiers(None, all_texts)",
        STEP,
    ),
    (
        "points not dropped", DECAF,
        "points = network.encode(bags(part.X, rows[share.rows]).to(device), settings.dropout, generator, share)",
        "points = network.encode(bags(part.X, rows[share.rows]).to(device), 0.0, generator, share)",
        STEP,
    ),
    (
        "Module IV reads texts in spite of -ẑ²", MODEL,
        "return self.texts if self.settings.text_in_classifiers else None",
        "return self.texts",
        STEP,
    ),
    (
        "E does not learn in Module IV", DECAF,
        "tokens=None if settings.lite else network.tokens,",
        "tokens=None,",
        STEP,
    ),
    (
        "refinement where it is not set", NETWORK,
        "self.refinement.gather(labels) if self.settings.refinement or text is None else None",
        "self.refinement.gather(labels)",
        STEP,
    ),
    (
        "the pool without its mask", NEGATIVES,
        "    mask = holds(listed, pool)\n",
        "    mask = torch.ones_like(right)\n",
        STEP,
    ),
    (
        "K/(NLB) over the pool", LOSSES,
        "        terms = terms * mask\n",
        "        terms = terms * mask / mask.shape[1]\n",
        STEP,
    ),
    # Sec. 3: texts and prediction
    (
        "no ReLU at the end of x̂", NETWORK,
        "x = dropped(F.relu(x), dropout, generator, share) if settings.relu else x",
        "pass",
        STEP,
    ),
    (
        "a ReLU where none is set", NETWORK,
        "dropped(F.relu(x), dropout, generator, share) if settings.relu else x",
        "dropped(F.relu(x), dropout, generator, share)",
        STEP,
    ),
    (
        "the last ReLU without dropout", NETWORK,
        "x = dropped(F.relu(x), dropout, generator, share) if",
        "x = F.relu(x) if",
        STEP,
    ),
    (
        "the block's ReLU without dropout", ENCODERS,
        "hidden = dropped(F.relu(sums), drop, generator, own)",
        "hidden = F.relu(sums)",
        STEP,
    ),
    (
        "no ReLU in the block", ENCODERS,
        "hidden = dropped(F.relu(sums), drop, generator, own)",
        "hidden = dropped(sums, drop, generator, own)",
        STEP,
    ),
    (
        "α and β of a block swapped", ENCODERS,
        "return torch.addcmul(residual, torch.sigmoid(self.alpha), sums)",
        "return torch.addcmul(residual, torch.sigmoid(self.beta), sums)",
        STEP,
    ),
    (
        "labels read by E_D", NETWORK,
        "return self.label_block(sums, dropout, generator, self.own)",
        "return self.document_block(sums, dropout, generator, self.own)",
        STEP,
    ),
    (
        "points read by E_L", NETWORK,
        "x = self.document_block(sums, dropout, generator, share)",
        "x = self.label_block(sums, dropout, generator, share)",
        STEP,
    ),
    (
        "no σ in combinations", COMBINATION,
        "torch.addcmul(torch.sigmoid(self.beta) * b, torch.sigmoid(self.alpha), a)",
        "torch.addcmul(self.beta * b, torch.sigmoid(self.alpha), a)",
        STEP,
    ),
    (
        "ln σ(h·x̂) dropped after the decoupled loss", NETWORK,
        "torch.sigmoid(products + F.logsigmoid(clusters))",
        "torch.sigmoid(products)",
        STEP,
    ),
    (
        "scores multiplied after the decoupled loss", NETWORK,
        "        if self.in_logits:\n",
        "        if False:\n",
        STEP,
    ),
    (
        "clusters count with HNSW", SHORTLISTERS,
        "        return None\n\n    def encoder",
        "        return 0.0\n\n    def encoder",
        STEP,
    ),
    (
        "S searches with x̂ of Module IV", NETWORK,
        "index, classifier, device, shortlister.encoder(), has_bias",
        "index, classifier, device, self.prediction_encoder(), has_bias",
        STEP,
    ),
    (
        "clusters opened without their bias", BEAM,
        "queries = with_ones(queries, self.heads)",
        ("queries = 0 * with_ones(queries, self.heads) + torch.nn.functional.pad(queries, (0, self.heads.shape[1] - "
         "queries.shape[1]))"),
        STEP,
    ),
    (
        "labels alike by their bias", LEARNER,
        "self.classifier.vectors[:, :-1] if self.has_bias else",
        "self.classifier.vectors[:, :] if self.has_bias else",
        STEP,
    ),
    (
        "explanations without the length of x̂ alone", LEARNER,
        "x = query[:, :-1] if self.has_bias else query",
        "x = query",
        STEP,
    ),
    (
        "new labels without bias", NETWORK,
        "self.mean_bias() * W.any(dim=1, keepdim=True)",
        "0 * W[:, :1]",
        STEP,
    ),
    (
        "a bias for texts without known words", NETWORK,
        "self.mean_bias() * W.any(dim=1, keepdim=True)",
        "self.mean_bias().expand(len(W), 1)",
        STEP,
    ),
    (
        "texts without known words score", MODEL,
        "queries[:, : self.settings.dimension].abs()",
        "queries.abs()",
        STEP,
    ),
    # Settings and the beam
    (
        "the beam of paper limited", SHORTLISTERS,
        "return smallest_beam(self.cluster_ranks(task.lesson.train, task))",
        "return min(16, smallest_beam(self.cluster_ranks(task.lesson.train, task)) // 4 + 1)",
        TESTS,
    ),
    (
        "85 % are enough", SHORTLISTERS,
        "100 * found > round(100 * RECALL) * len(ranks)",
        "100 * found >= round(100 * RECALL) * len(ranks)",
        PAPER,
    ),
    (
        "the beam by some points of train", SHORTLISTERS,
        "self.cluster_ranks(task.lesson.train, task))",
        "self.cluster_ranks(evenly_spaced(task.lesson.train, BEAM_POINTS), task))",
        TESTS,
    ),
    (
        "a limited beam without a note", SHORTLISTERS,
        "        if wanted > most:\n",
        "        if False:\n",
        TESTS,
    ),
    (
        "a beam above K", SHORTLISTERS,
        "return min(self.settings.beam, clusters)",
        "return self.settings.beam",
        TESTS,
    ),
    (
        "K a quarter in paper", SETTINGS,
        "labels_per_cluster=2.25,",
        "labels_per_cluster=4,",
        PAPER,
    ),
    (
        "no bias in paper", SETTINGS,
        "label_bias=True,",
        "label_bias=False,",
        PAPER,
    ),
    (
        "u_m of any length in paper", SETTINGS,
        "unit_cluster_texts=True,",
        "unit_cluster_texts=False,",
        PAPER,
    ),
    (
        "the bias of labels is lost in a warm start", MODEL,
        "                network.bias.grow(count, generator, std=0.0)\n",
        "                network.bias = None\n",
        TESTS,
    ),
]  # fmt: skip
MUTANTS = [("decaf", *change) for change in CHANGES]
